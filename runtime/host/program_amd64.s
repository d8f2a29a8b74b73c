#include "textflag.h"

// The program of program.go. It is copied out of here into a file of its own, so it calls nothing but the kernel.

// func limitText() unsafe.Pointer
TEXT ·limitText(SB),NOSPLIT,$0-8
	LEAQ	setLimit<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

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
