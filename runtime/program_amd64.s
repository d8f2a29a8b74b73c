#include "textflag.h"

// The programs of program.go. They are copied out of here into files of their own, so they call nothing but the kernel.

// func initText() unsafe.Pointer
TEXT ·initText(SB),NOSPLIT,$0-8
	LEAQ	namespaceInit<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// func probeText() unsafe.Pointer
TEXT ·probeText(SB),NOSPLIT,$0-8
	LEAQ	namespaceProbe<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// func limitText() unsafe.Pointer
TEXT ·limitText(SB),NOSPLIT,$0-8
	LEAQ	setLimit<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

TEXT namespaceInit<>(SB),NOSPLIT|NOFRAME,$0
	// prctl(PR_SET_NAME, "trl-init"): for ps.
	MOVQ	$15, DI
	MOVQ	$0x74696e692d6c7274, AX
	PUSHQ	$0
	PUSHQ	AX
	MOVQ	SP, SI
	MOVQ	$157, AX
	SYSCALL
	// rt_sigaction(SIGCHLD, {SIG_IGN, flags 0, no restorer, mask 0}, NULL, 8): the kernel reaps our children itself.
	PUSHQ	$0
	PUSHQ	$0
	PUSHQ	$0
	PUSHQ	$1
	MOVQ	$17, DI
	MOVQ	SP, SI
	MOVQ	$0, DX
	MOVQ	$8, R10
	MOVQ	$13, AX
	SYSCALL
again:
	// read(0, stack, 1): ends when trl does, which holds the other end of this pipe.
	MOVQ	$0, DI
	MOVQ	SP, SI
	MOVQ	$1, DX
	MOVQ	$0, AX
	SYSCALL
	CMPQ	AX, $-4 // EINTR
	JEQ	again
	// exit_group(0), and the kernel kills all that is left.
	MOVQ	$0, DI
	MOVQ	$231, AX
	SYSCALL

TEXT namespaceProbe<>(SB),NOSPLIT|NOFRAME,$0
	// unshare(CLONE_NEWPID), then exit_group(its errno).
	MOVQ	$0x20000000, DI
	MOVQ	$272, AX
	SYSCALL
	NEGQ	AX
	MOVQ	AX, DI
	MOVQ	$231, AX
	SYSCALL

TEXT setLimit<>(SB),NOSPLIT|NOFRAME,$0
	SUBQ	$32, SP
	// read(0, stack, 32): pid, resource, soft, hard.
	MOVQ	$0, DI
	MOVQ	SP, SI
	MOVQ	$32, DX
	MOVQ	$0, AX
	SYSCALL
	// prlimit64(pid, resource, {soft, hard}, NULL), then exit_group(its errno).
	MOVQ	0(SP), DI
	MOVQ	8(SP), SI
	LEAQ	16(SP), DX
	MOVQ	$0, R10
	MOVQ	$302, AX
	SYSCALL
	NEGQ	AX
	MOVQ	AX, DI
	MOVQ	$231, AX
	SYSCALL
