#include "textflag.h"

// The kernel calls the handler with (R0 signo, R1 siginfo, R2 context) on the thread's signal stack, and restores all registers
// afterwards. The handler calls write(signalPipe, siginfo, siginfoBytes) and ignores the result, because it could not act on it.
TEXT signalled<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVW ·signalPipe(SB), R0
	MOVD $24, R2
	MOVD $64, R8 // SYS_write
	SVC
	RET

// func handlers() (handler, restorer uintptr)
TEXT ·handlers(SB), NOSPLIT, $0-16
	MOVD $signalled<>(SB), R0
	MOVD R0, handler+0(FP)
	MOVD ZR, restorer+8(FP) // the kernel returns through its vdso
	RET
