#include "textflag.h"

// func sumFloat32(dsts *unsafe.Pointer, dstCount int, srcs *unsafe.Pointer, srcCount int, n int, divisor float32)
//
// One pass: 32 elements of each source are added up in Y0 to Y3 and written to each
// destination, which is where they were read from in an all-reduce.
TEXT ·sumFloat32(SB), NOSPLIT, $0-44
	MOVQ dsts+0(FP), DI
	MOVQ dstCount+8(FP), R8
	MOVQ srcs+16(FP), SI
	MOVQ srcCount+24(FP), R9
	MOVQ n+32(FP), DX
	SHLQ $2, DX                      // bytes
	VBROADCASTSS divisor+40(FP), Y4
	MOVL divisor+40(FP), R13
	XORQ AX, AX                      // offset
next:
	MOVQ (SI), R10
	VMOVUPS (R10)(AX*1), Y0
	VMOVUPS 32(R10)(AX*1), Y1
	VMOVUPS 64(R10)(AX*1), Y2
	VMOVUPS 96(R10)(AX*1), Y3
	MOVQ $1, CX
	JMP  more
source:
	MOVQ (SI)(CX*8), R10
	VADDPS (R10)(AX*1), Y0, Y0
	VADDPS 32(R10)(AX*1), Y1, Y1
	VADDPS 64(R10)(AX*1), Y2, Y2
	VADDPS 96(R10)(AX*1), Y3, Y3
	INCQ CX
more:
	CMPQ CX, R9
	JLT  source
	TESTL R13, R13
	JEQ  write
	VDIVPS Y4, Y0, Y0
	VDIVPS Y4, Y1, Y1
	VDIVPS Y4, Y2, Y2
	VDIVPS Y4, Y3, Y3
write:
	XORQ CX, CX
	JMP  last
destination:
	MOVQ (DI)(CX*8), R10
	VMOVUPS Y0, (R10)(AX*1)
	VMOVUPS Y1, 32(R10)(AX*1)
	VMOVUPS Y2, 64(R10)(AX*1)
	VMOVUPS Y3, 96(R10)(AX*1)
	INCQ CX
last:
	CMPQ CX, R8
	JLT  destination
	ADDQ $128, AX
	CMPQ AX, DX
	JLT  next
	VZEROUPPER
	RET

// func stream(dst, src unsafe.Pointer, n int)
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	XORQ AX, AX
	JMP  check
copy:
	VMOVDQU (SI)(AX*1), Y0
	VMOVDQU 32(SI)(AX*1), Y1
	VMOVDQU 64(SI)(AX*1), Y2
	VMOVDQU 96(SI)(AX*1), Y3
	VMOVNTDQ Y0, (DI)(AX*1)
	VMOVNTDQ Y1, 32(DI)(AX*1)
	VMOVNTDQ Y2, 64(DI)(AX*1)
	VMOVNTDQ Y3, 96(DI)(AX*1)
	ADDQ $128, AX
check:
	CMPQ AX, DX
	JLT  copy
	SFENCE                           // these stores come before all that follow
	VZEROUPPER
	RET

// func widenBFloat16s(dst, src unsafe.Pointer, n int)
TEXT ·widenBFloat16s(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	XORQ AX, AX
next:
	VPMOVZXWD (SI)(AX*2), Y0
	VPMOVZXWD 16(SI)(AX*2), Y1
	VPSLLD $16, Y0, Y0
	VPSLLD $16, Y1, Y1
	VMOVUPS Y0, (DI)(AX*4)
	VMOVUPS Y1, 32(DI)(AX*4)
	ADDQ $16, AX
	CMPQ AX, DX
	JLT  next
	VZEROUPPER
	RET

// ROUND makes bfloat16 of the float32 in IN, in the lower halves of OUT: the upper
// half, plus 1 if the lower is more than half of a unit, or half of it and the upper
// is odd. A NaN stays one. It uses Y8 to Y11.
#define ROUND(IN, OUT) \
	VPSRLD $16, IN, Y8        \
	VPAND Y13, Y8, Y9         \
	VPADDD Y14, Y9, Y9        \
	VPADDD IN, Y9, Y9         \
	VPSRLD $16, Y9, Y9        \
	VPOR Y15, Y8, Y10         \
	VCMPPS $3, IN, IN, Y11    \
	VPBLENDVB Y11, Y10, Y9, OUT

// func narrowBFloat16s(dst, src unsafe.Pointer, n int)
TEXT ·narrowBFloat16s(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	VPCMPEQD Y12, Y12, Y12
	VPSRLD $31, Y12, Y13             // 1
	VPSRLD $17, Y12, Y14             // 0x7fff
	VPSLLD $6, Y13, Y15              // 0x40, the bit of a quiet NaN
	XORQ AX, AX
next:
	VMOVUPS (SI)(AX*4), Y0
	VMOVUPS 32(SI)(AX*4), Y1
	ROUND(Y0, Y2)
	ROUND(Y1, Y3)
	VPACKUSDW Y3, Y2, Y2             // quarters 0 2 1 3
	VPERMQ $0xd8, Y2, Y2
	VMOVDQU Y2, (DI)(AX*2)
	ADDQ $16, AX
	CMPQ AX, DX
	JLT  next
	VZEROUPPER
	RET

// func widenFloat16s(dst, src unsafe.Pointer, n int)
TEXT ·widenFloat16s(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	XORQ AX, AX
next:
	VCVTPH2PS (SI)(AX*2), Y0
	VCVTPH2PS 16(SI)(AX*2), Y1
	VMOVUPS Y0, (DI)(AX*4)
	VMOVUPS Y1, 32(DI)(AX*4)
	ADDQ $16, AX
	CMPQ AX, DX
	JLT  next
	VZEROUPPER
	RET

// func narrowFloat16s(dst, src unsafe.Pointer, n int)
TEXT ·narrowFloat16s(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	XORQ AX, AX
next:
	VMOVUPS (SI)(AX*4), Y0
	VMOVUPS 32(SI)(AX*4), Y1
	VCVTPS2PH $0, Y0, (DI)(AX*2)     // to the nearest, and to even
	VCVTPS2PH $0, Y1, 16(DI)(AX*2)
	ADDQ $16, AX
	CMPQ AX, DX
	JLT  next
	VZEROUPPER
	RET
