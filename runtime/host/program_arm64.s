#include "textflag.h"

// The program of program.go. It is copied out of here into a file of its own, so it calls nothing but the kernel.

// func limitText() unsafe.Pointer
TEXT ·limitText(SB),NOSPLIT,$0-8
	MOVD	$setLimit<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET

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
