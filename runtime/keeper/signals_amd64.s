#include "textflag.h"

// The kernel calls the handler with (DI signo, SI siginfo, DX context) on the thread's signal stack, and restores all registers
// afterwards. The handler calls write(signalPipe, siginfo, siginfoBytes) and ignores the result, because it could not act on it.
TEXT signalled<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVL ·signalPipe(SB), DI
	MOVQ $24, DX
	MOVQ $1, AX // SYS_write
	SYSCALL
	RET

// On this architecture the kernel needs a function that returns from a handler.
TEXT restore<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ $15, AX // SYS_rt_sigreturn
	SYSCALL
	INT $3 // not reached

// func handlers() (handler, restorer uintptr)
TEXT ·handlers(SB), NOSPLIT, $0-16
	LEAQ signalled<>(SB), AX
	MOVQ AX, handler+0(FP)
	LEAQ restore<>(SB), AX
	MOVQ AX, restorer+8(FP)
	RET
