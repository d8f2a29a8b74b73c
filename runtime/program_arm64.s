#include "textflag.h"

// The programs of program.go. They are copied out of here into files of their own, so they call nothing but the kernel.

// func initText() unsafe.Pointer
TEXT ·initText(SB),NOSPLIT,$0-8
	MOVD	$namespaceInit<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// func probeText() unsafe.Pointer
TEXT ·probeText(SB),NOSPLIT,$0-8
	MOVD	$namespaceProbe<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// func limitText() unsafe.Pointer
TEXT ·limitText(SB),NOSPLIT,$0-8
	MOVD	$setLimit<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET

TEXT namespaceInit<>(SB),NOSPLIT|NOFRAME,$0
	SUB	$48, RSP
	// prctl(PR_SET_NAME, "trl-init"): for ps.
	MOVD	$0x74696e692d6c7274, R1
	MOVD	R1, 32(RSP)
	MOVD	ZR, 40(RSP)
	MOVD	$15, R0
	ADD	$32, RSP, R1
	MOVD	$167, R8
	SVC
	// rt_sigaction(SIGCHLD, {SIG_IGN, flags 0, no restorer, mask 0}, NULL, 8): the kernel reaps our children itself.
	MOVD	$1, R1
	MOVD	R1, 0(RSP)
	MOVD	ZR, 8(RSP)
	MOVD	ZR, 16(RSP)
	MOVD	ZR, 24(RSP)
	MOVD	$17, R0
	MOVD	RSP, R1
	MOVD	ZR, R2
	MOVD	$8, R3
	MOVD	$134, R8
	SVC
again:
	// read(0, stack, 1): ends when trl does, which holds the other end of this pipe.
	MOVD	ZR, R0
	MOVD	RSP, R1
	MOVD	$1, R2
	MOVD	$63, R8
	SVC
	CMN	$4, R0 // EINTR
	BEQ	again
	// exit_group(0), and the kernel kills all that is left.
	MOVD	ZR, R0
	MOVD	$94, R8
	SVC

TEXT namespaceProbe<>(SB),NOSPLIT|NOFRAME,$0
	// unshare(CLONE_NEWPID), then exit_group(its errno).
	MOVD	$0x20000000, R0
	MOVD	$97, R8
	SVC
	NEG	R0, R0
	MOVD	$94, R8
	SVC

TEXT setLimit<>(SB),NOSPLIT|NOFRAME,$0
	SUB	$32, RSP
	// read(0, stack, 32): pid, resource, soft, hard.
	MOVD	ZR, R0
	MOVD	RSP, R1
	MOVD	$32, R2
	MOVD	$63, R8
	SVC
	// prlimit64(pid, resource, {soft, hard}, NULL), then exit_group(its errno).
	MOVD	0(RSP), R0
	MOVD	8(RSP), R1
	ADD	$16, RSP, R2
	MOVD	ZR, R3
	MOVD	$261, R8
	SVC
	NEG	R0, R0
	MOVD	$94, R8
	SVC
