# SSE to SSE4.2: moves of all kinds, arithmetic with memory, scalars, conversions, insertions and extractions, masked bytes.
        .include "memory.inc"
_start:
        lea     rbx, [rip + data]
        lea     r15, [rip + data + 0x200]
        mov     ecx, 2

# Moves, aligned and not.
        .irp    name, movaps, movapd, movdqa
        \name   xmm0, [rbx + 0x10]
        \name   [rbx + 0x110], xmm0
        \name   xmm15, [r15 + rcx * 8]
        \name   [r15 + rcx * 8 + 0x10], xmm15
        .endr
        .irp    name, movups, movupd, movdqu
        \name   xmm1, [rbx + 0x21]
        \name   [rbx + 0x121], xmm1
        \name   xmm9, [rip + data + 0x33]
        \name   [rip + data + 0x133], xmm9
        .endr
        movss   xmm2, [rbx + 0x31]
        movss   [rbx + 0x131], xmm2
        movsd   xmm3, [rbx + 0x35]
        movsd   [rbx + 0x135], xmm3
        movd    xmm4, dword ptr [rbx + 0x39]
        movd    dword ptr [rbx + 0x139], xmm4
        movq    xmm5, qword ptr [rbx + 0x3d]
        movq    qword ptr [rbx + 0x13d], xmm5
        movlps  xmm1, [rbx + 0x41]
        movlps  [rbx + 0x141], xmm1
        movhps  xmm1, [rbx + 0x49]
        movhps  [rbx + 0x149], xmm1
        movlpd  xmm1, [rbx + 0x51]
        movlpd  [rbx + 0x151], xmm1
        movhpd  xmm1, [rbx + 0x59]
        movhpd  [rbx + 0x159], xmm1
        movntps [rbx + 0x160], xmm1
        movntpd [rbx + 0x170], xmm1
        movntdq [rbx + 0x180], xmm1
        movaps  [rbx + 0x190], xmm1

# Arithmetic and logic with a packed operand.
        movaps  xmm6, [rip + singles]
        .irp    name, addps, subps, mulps, divps, minps, maxps, sqrtps, rcpps, rsqrtps, andps, andnps, orps, xorps, unpcklps, unpckhps
        \name   xmm6, [rip + singles + 16]
        .endr
        shufps  xmm6, [rip + singles], 0x1b
        cmpps   xmm6, [rip + singles + 16], 1
        movaps  [rbx + 0x1a0], xmm6
        movapd  xmm7, [rip + doubles]
        .irp    name, addpd, subpd, mulpd, divpd, minpd, maxpd, sqrtpd, andpd, andnpd, orpd, xorpd, unpcklpd, unpckhpd
        \name   xmm7, [rip + doubles + 16]
        .endr
        shufpd  xmm7, [rip + doubles], 1
        cmppd   xmm7, [rip + doubles + 16], 4
        movapd  [rbx + 0x1b0], xmm7
        movdqa  xmm8, [rbx + 0x60]
        .irp    name, paddb, paddw, paddd, paddq, paddsb, paddsw, paddusb, paddusw, psubb, psubw, psubd, psubq, psubsb, psubusw, pmullw, pmulhw, pmulhuw, pmuludq, pmaddwd, psadbw, pavgb, pavgw, pminub, pmaxub, pminsw, pmaxsw, pand, pandn, por, pxor, pcmpeqb, pcmpeqw, pcmpeqd, pcmpgtb, pcmpgtw, pcmpgtd, packsswb, packssdw, packuswb, punpcklbw, punpcklwd, punpckldq, punpcklqdq, punpckhbw, punpckhwd, punpckhdq, punpckhqdq
        \name   xmm8, [rbx + 0x70]
        paddb   xmm8, [rbx + 0x80]
        .endr
        movdqa  [rbx + 0x1c0], xmm8
        .irp    name, psllw, pslld, psllq, psrlw, psrld, psrlq, psraw, psrad
        \name   xmm8, [rip + shift]
        .endr
        pshufd  xmm8, [rbx + 0x90], 0x1b
        pshufhw xmm9, [rbx + 0x90], 0x1b
        pshuflw xmm10, [rbx + 0x90], 0x1b
        movdqa  [rbx + 0x1d0], xmm8

# Scalars: four or eight bytes.
        movss   xmm6, [rip + singles]
        .irp    name, addss, subss, mulss, divss, minss, maxss, sqrtss, rcpss, rsqrtss
        \name   xmm6, [rip + singles + 4]
        .endr
        cmpss   xmm6, [rip + singles + 8], 2
        comiss  xmm6, [rip + singles]
        keep_flags
        ucomiss xmm6, [rip + singles]
        keep_flags
        movsd   xmm7, [rip + doubles]
        .irp    name, addsd, subsd, mulsd, divsd, minsd, maxsd, sqrtsd
        \name   xmm7, [rip + doubles + 8]
        .endr
        cmpsd   xmm7, [rip + doubles + 16], 2
        comisd  xmm7, [rip + doubles]
        keep_flags
        ucomisd xmm7, [rip + doubles]
        keep_flags
        movss   [rbx + 0x1e0], xmm6
        movsd   [rbx + 0x1e8], xmm7

# Conversions.
        cvtsi2ss xmm0, dword ptr [rbx + 0xa0]
        cvtsi2ss xmm0, qword ptr [rbx + 0xa4]
        cvtsi2sd xmm1, dword ptr [rbx + 0xa8]
        cvtsi2sd xmm1, qword ptr [rbx + 0xac]
        cvtss2sd xmm2, [rip + singles]
        cvtsd2ss xmm3, [rip + doubles]
        cvtss2si eax, [rip + singles + 4]
        keep    rax
        cvttss2si r15, [rip + singles + 8]
        keep    r15
        cvtsd2si rax, [rip + doubles + 8]
        keep    rax
        cvttsd2si eax, [rip + doubles + 16]
        keep    rax
        cvtdq2ps xmm4, [rbx + 0xb0]
        cvtdq2pd xmm5, [rbx + 0xb4]
        cvtps2pd xmm6, [rip + singles + 4]
        cvtpd2ps xmm7, [rip + doubles]
        cvtps2dq xmm8, [rip + singles]
        cvttps2dq xmm9, [rip + singles]
        cvtpd2dq xmm10, [rip + doubles]
        cvttpd2dq xmm11, [rip + doubles]
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movups  [rbx + 0x200 + \number * 16], xmm\number
        .endr

# Single words, and bytes under a mask.
        pinsrw  xmm0, word ptr [rbx + 0xc1], 5
        movdqa  xmm1, [rip + mask]
        lea     rdi, [rbx + 0x301]
        maskmovdqu xmm0, xmm1
        pxor    xmm1, xmm1
        maskmovdqu xmm0, xmm1           # none
        pcmpeqb xmm1, xmm1
        maskmovdqu xmm0, xmm1           # all
        .byte   0x67
        maskmovdqu xmm0, xmm1

        needs   sse3, 1, ecx, 0, no_sse3
        lea     rbx, [rip + data]
        lddqu   xmm0, [rbx + 0xc3]
        movddup xmm1, [rbx + 0xc5]
        movshdup xmm2, [rip + singles]
        movsldup xmm3, [rip + singles]
        .irp    name, addsubps, haddps, hsubps
        \name   xmm2, [rip + singles]
        .endr
        .irp    name, addsubpd, haddpd, hsubpd
        \name   xmm1, [rip + doubles]
        .endr
        movaps  [rbx + 0x310], xmm0
        movaps  [rbx + 0x320], xmm1
        movaps  [rbx + 0x330], xmm2
        movaps  [rbx + 0x340], xmm3
no_sse3:
        needs   ssse3, 1, ecx, 9, no_ssse3
        lea     rbx, [rip + data]
        .irp    name, pshufb, phaddw, phaddd, phaddsw, phsubw, phsubd, pmaddubsw, pmulhrsw, psignb, psignw, psignd, pabsb, pabsw, pabsd
        \name   xmm0, [rbx + 0xd0]
        .endr
        palignr xmm0, [rbx + 0xe0], 5
        movaps  [rbx + 0x350], xmm0
no_ssse3:
        needs   sse4.1, 1, ecx, 19, no_sse41
        lea     rbx, [rip + data]
        pinsrb  xmm0, byte ptr [rbx + 0xe1], 3
        pinsrd  xmm0, dword ptr [rbx + 0xe3], 1
        pinsrq  xmm0, qword ptr [rbx + 0xe5], 1
        pextrb  byte ptr [rbx + 0x361], xmm0, 3
        pextrw  word ptr [rbx + 0x363], xmm0, 2
        pextrd  dword ptr [rbx + 0x365], xmm0, 1
        pextrq  qword ptr [rbx + 0x369], xmm0, 1
        insertps xmm0, [rbx + 0xe7], 0x10
        extractps dword ptr [rbx + 0x371], xmm0, 2
        movntdqa xmm1, [rbx + 0xf0]
        movdqa  xmm0, [rip + mask]
        blendvps xmm1, [rbx + 0x20], xmm0
        blendvpd xmm1, [rbx + 0x30], xmm0
        pblendvb xmm1, [rbx + 0x40], xmm0
        blendps xmm1, [rbx + 0x50], 5
        pblendw xmm1, [rbx + 0x60], 0x55
        dpps    xmm1, [rip + singles], 0xf1
        dppd    xmm1, [rip + doubles], 0x31
        roundss xmm1, [rip + singles + 4], 1
        roundsd xmm1, [rip + doubles + 8], 1
        roundps xmm2, [rip + singles], 2
        roundpd xmm3, [rip + doubles], 2
        mpsadbw xmm2, [rbx + 0x70], 3
        phminposuw xmm3, [rbx + 0x80]
        ptest   xmm3, [rbx + 0x90]
        keep_flags
        .irp    name, pmovsxbw, pmovsxbd, pmovsxbq, pmovsxwd, pmovsxwq, pmovsxdq, pmovzxbw, pmovzxbd, pmovzxbq, pmovzxwd, pmovzxwq, pmovzxdq
        \name   xmm4, [rbx + 0x7b]
        movups  [rbx + 0x379], xmm4
        .endr
        .irp    name, pmuldq, pmulld, pminsb, pminsd, pminuw, pminud, pmaxsb, pmaxsd, pmaxuw, pmaxud, packusdw, pcmpeqq
        \name   xmm4, [rbx + 0xa0]
        .endr
        movaps  [rbx + 0x390], xmm1
        movaps  [rbx + 0x3a0], xmm2
        movaps  [rbx + 0x3b0], xmm4
no_sse41:
        needs   sse4.2, 1, ecx, 20, no_sse42
        lea     rbx, [rip + data]
        mov     eax, 9
        mov     edx, 11
        pcmpgtq xmm4, [rbx + 0xb0]
        pcmpestri xmm4, [rbx + 0xc1], 0
        keep    rcx
        pcmpestrm xmm4, [rbx + 0xc2], 0x40
        pcmpistri xmm4, [rbx + 0xc3], 0xc
        keep    rcx
        pcmpistrm xmm4, [rbx + 0xc4], 8
        movaps  [rbx + 0x3c0], xmm0
no_sse42:
        needs   aes, 1, ecx, 25, no_aes
        lea     rbx, [rip + data]
        .irp    name, aesenc, aesenclast, aesdec, aesdeclast, aesimc
        \name   xmm5, [rbx + 0xd0]
        .endr
        aeskeygenassist xmm6, [rbx + 0xe0], 1
        movaps  [rbx + 0x3d0], xmm5
        movaps  [rbx + 0x3e0], xmm6
no_aes: needs   pclmulqdq, 1, ecx, 1, no_pclmulqdq
        lea     rbx, [rip + data]
        pclmulqdq xmm5, [rbx + 0xf0], 0x11
        movaps  [rbx + 0x3f0], xmm5
no_pclmulqdq:
        needs   sha, 7, ebx, 29, no_sha
        lea     rbx, [rip + data]
        sha1msg1 xmm5, [rbx + 0x10]
        sha256rnds2 xmm5, [rbx + 0x20]
        sha256msg2 xmm5, [rbx + 0x30]
        movaps  [rbx + 0x400], xmm5
no_sha: finish

        .data
        .balign 16
singles:
        .float  1.5, -2.25, 3.125, 1000.0, 0.5, 7.75, -1.0, 2.0
doubles:
        .double 1.5, -2.25, 3.125, 1000.0
shift:  .quad   3, 0
mask:   .byte   0x80, 0, 0x7f, 0xff, 0, 0, 0x81, 0, 0, 0xc0, 0, 0, 1, 2, 3, 0xfe
        .text
