# AVX, AVX2, FMA and F16C: 32 bytes at a time, broadcasts, masked moves, gathers, halves.
        .include "memory.inc"
_start:
        needs_state "avx state", 6, nothing
        needs   avx, 1, ecx, 28, nothing
        lea     rbx, [rip + data]
        lea     r15, [rip + data + 0x400]
        mov     ecx, 4

        .irp    name, vmovaps, vmovapd, vmovdqa
        \name   ymm0, [rbx + 0x20]
        \name   [rbx + 0x200], ymm0
        \name   xmm1, [rbx + 0x30]
        \name   [rbx + 0x220], xmm1
        \name   ymm15, [r15 + rcx * 8]
        \name   [r15 + rcx * 8 + 0x20], ymm15
        .endr
        .irp    name, vmovups, vmovupd, vmovdqu
        \name   ymm2, [rbx + 0x41]
        \name   [rbx + 0x241], ymm2
        \name   xmm10, [rip + data + 0x53]
        \name   [rip + data + 0x263], xmm10
        .endr
        vlddqu  ymm3, [rbx + 0x61]
        vmovntps [rbx + 0x280], ymm3
        vmovntpd [rbx + 0x2a0], ymm3
        vmovntdq [rbx + 0x2c0], ymm3
        vmovss  xmm4, [rbx + 0x71]
        vmovss  [rbx + 0x2e1], xmm4
        vmovsd  xmm5, [rbx + 0x73]
        vmovsd  [rbx + 0x2e5], xmm5
        vmovd   xmm5, dword ptr [rbx + 0x75]
        vmovd   dword ptr [rbx + 0x2ed], xmm5
        vmovq   xmm5, qword ptr [rbx + 0x77]
        vmovq   qword ptr [rbx + 0x2f1], xmm5
        vmovlps xmm5, xmm4, [rbx + 0x79]
        vmovhps xmm5, xmm4, [rbx + 0x7b]
        vmovlpd xmm5, xmm4, [rbx + 0x7d]
        vmovhpd xmm5, xmm4, [rbx + 0x7f]
        vmovlps [rbx + 0x300], xmm5
        vmovhpd [rbx + 0x308], xmm5
        vmovddup ymm6, [rbx + 0x81]
        vmovddup xmm6, [rbx + 0x83]
        vmovshdup ymm6, [rbx + 0x85]
        vmovsldup ymm7, [rbx + 0x87]
        vmovups [rbx + 0x310], ymm6

        vbroadcastss xmm0, [rbx + 0x91]
        vbroadcastss ymm0, [rbx + 0x93]
        vbroadcastsd ymm1, [rbx + 0x95]
        vbroadcastf128 ymm2, [rbx + 0x97]
        vinsertf128 ymm2, ymm1, [rbx + 0x99], 1
        vextractf128 [rbx + 0x331], ymm2, 1
        vperm2f128 ymm3, ymm2, [rbx + 0x9b], 0x21
        vpermilps ymm4, [rbx + 0x9d], 0x1b
        vpermilps ymm4, ymm3, [rbx + 0x9f]
        vpermilpd ymm5, [rbx + 0xa1], 5
        vmovups [rbx + 0x341], ymm0
        vmovups [rbx + 0x361], ymm4
        vmovups [rbx + 0x381], ymm5

        vmovaps ymm8, [rip + singles]
        .irp    name, vaddps, vsubps, vmulps, vdivps, vminps, vmaxps, vandps, vandnps, vorps, vxorps, vunpcklps, vunpckhps, vaddsubps, vhaddps, vhsubps
        \name   ymm9, ymm8, [rip + singles]
        \name   xmm10, xmm8, [rip + singles + 4]
        .endr
        vsqrtps ymm9, [rip + singles]
        vrcpps  ymm10, [rip + singles]
        vcmpps  ymm11, ymm8, [rip + singles], 0x1e
        vdpps   ymm12, ymm8, [rip + singles], 0xff
        vshufps ymm12, ymm8, [rip + singles], 0x1b
        vblendps ymm12, ymm12, [rip + singles], 0x5a
        vblendvps ymm12, ymm12, [rip + singles], ymm11
        vroundps ymm13, [rip + singles], 1
        vaddss  xmm14, xmm8, [rip + singles + 4]
        vaddsd  xmm14, xmm14, [rip + doubles]
        vsqrtss xmm14, xmm14, [rip + singles]
        vroundsd xmm14, xmm14, [rip + doubles], 1
        vcmpsd  xmm14, xmm14, [rip + doubles], 3
        vucomiss xmm8, [rip + singles]
        keep_flags
        vtestps ymm8, [rip + singles]
        keep_flags
        vptest  ymm8, [rip + singles]
        keep_flags
        vmovups [rbx + 0x3a1], ymm9
        vmovups [rbx + 0x3c1], ymm12
        vmovups [rbx + 0x3e1], xmm14
        vcvtdq2ps ymm0, [rbx + 0xb1]
        vcvtdq2pd ymm1, [rbx + 0xb3]
        vcvtps2pd ymm2, [rip + singles]
        vcvtpd2ps xmm3, ymmword ptr [rip + doubles]
        vcvtps2dq ymm4, [rip + singles]
        vcvttpd2dq xmm5, ymmword ptr [rip + doubles]
        vcvtsi2sd xmm6, xmm6, qword ptr [rbx + 0xb5]
        vcvtss2sd xmm7, xmm7, [rip + singles]
        vcvttsd2si rax, [rip + doubles]
        keep    rax
        vmovups [rbx + 0x401], ymm0
        vmovups [rbx + 0x421], ymm1
        vmovups [rbx + 0x441], ymm2
        vpinsrb xmm0, xmm0, byte ptr [rbx + 0xc1], 3
        vpinsrw xmm0, xmm0, word ptr [rbx + 0xc3], 3
        vpinsrd xmm0, xmm0, dword ptr [rbx + 0xc5], 3
        vpinsrq xmm0, xmm0, qword ptr [rbx + 0xc7], 1
        vinsertps xmm0, xmm0, [rbx + 0xc9], 0x20
        vpextrb byte ptr [rbx + 0x461], xmm0, 1
        vpextrw word ptr [rbx + 0x463], xmm0, 1
        vpextrd dword ptr [rbx + 0x465], xmm0, 1
        vpextrq qword ptr [rbx + 0x469], xmm0, 1
        vextractps dword ptr [rbx + 0x471], xmm0, 3
        vpaddd  xmm0, xmm1, [rbx + 0xcb]
        vpshufb xmm0, xmm0, [rbx + 0xcd]
        vpslld  xmm0, xmm0, [rip + shift]
        vpcmpistri xmm0, [rbx + 0xd1], 0xc
        keep    rcx
        vldmxcsr [rip + control]
        vstmxcsr [rbx + 0x478]

# Masked moves: some, none, all; the elements beside them are on no page at all.
        .irp    mask, some, none, every
        vmovdqu ymm1, [rip + \mask]
        vmaskmovps ymm2, ymm1, [rbx + 0xd3]
        vmovups [rbx + 0x501], ymm2
        vmaskmovpd ymm2, ymm1, [rbx + 0xd5]
        vmovups [rbx + 0x521], ymm2
        vmaskmovps xmm2, xmm1, [rbx + 0xd7]
        vmaskmovpd xmm2, xmm1, [rbx + 0xd9]
        vmaskmovps [rbx + 0x541], ymm1, ymm2
        vmaskmovpd [rbx + 0x561], ymm1, ymm8
        vmaskmovps [rbx + 0x581], xmm1, xmm8
        vmaskmovpd [rbx + 0x591], xmm1, xmm8
        lea     rdi, [rbx + 0x5a1]
        vmaskmovdqu xmm8, xmm1
        .endr
        vmovdqu ymm1, [rip + last_only]
        vmaskmovps ymm2, ymm1, [data - 28]      # all but the last element lie before the data
        vmaskmovps [data - 28], ymm1, ymm2

        needs   f16c, 1, ecx, 29, no_f16c
        lea     rbx, [rip + data]
        vcvtph2ps ymm0, [rip + halves]
        vcvtph2ps xmm1, [rip + halves]
        vcvtps2ph [rbx + 0x5c1], ymm0, 0
        vcvtps2ph [rbx + 0x5d1], xmm0, 0
no_f16c:
        needs   fma, 1, ecx, 12, no_fma
        lea     rbx, [rip + data]
        vfmadd213ps ymm8, ymm8, [rip + singles]
        vfnmsub231ss xmm8, xmm8, [rip + singles]
        vfmaddsub132pd ymm8, ymm8, [rip + doubles]
        vfmadd231sd xmm8, xmm8, [rip + doubles]
        vmovups [rbx + 0x5e1], ymm8
no_fma: needs   avx2, 7, ebx, 5, no_avx2
        lea     rbx, [rip + data]
        vmovdqu ymm0, [rbx + 0x11]
        .irp    name, vpaddb, vpaddw, vpaddd, vpaddq, vpsubb, vpsubusw, vpmullw, vpmulld, vpmuludq, vpmaddwd, vpsadbw, vpminub, vpmaxsd, vpand, vpandn, vpor, vpxor, vpcmpeqb, vpcmpgtq, vpacksswb, vpackusdw, vpunpcklbw, vpunpckhqdq, vpshufb, vphaddd, vpsignw, vpmulhrsw, vpsllvd, vpsllvq, vpsrlvd, vpsravd
        \name   ymm1, ymm0, [rbx + 0x21]
        vpaddd  ymm0, ymm0, ymm1
        .endr
        vmovdqu [rbx + 0x601], ymm0
        vpsllw  ymm0, ymm0, [rip + shift]
        vpalignr ymm0, ymm0, [rbx + 0x31], 7
        vpblendd ymm0, ymm0, [rbx + 0x33], 0x5a
        vpblendvb ymm0, ymm0, [rbx + 0x35], ymm1
        vmpsadbw ymm0, ymm0, [rbx + 0x37], 2
        vpshufd ymm1, [rbx + 0x39], 0x1b
        vpermq  ymm2, [rbx + 0x3b], 0x1b
        vpermpd ymm3, [rbx + 0x3d], 0x1b
        vpermd  ymm4, ymm0, [rbx + 0x3f]
        vpermps ymm5, ymm0, [rbx + 0x41]
        vperm2i128 ymm6, ymm0, [rbx + 0x43], 0x21
        vinserti128 ymm7, ymm0, [rbx + 0x45], 1
        vextracti128 [rbx + 0x621], ymm7, 1
        vbroadcasti128 ymm7, [rbx + 0x47]
        vpabsd  ymm7, [rbx + 0x49]
        vmovntdqa ymm8, [rbx + 0x60]
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7, 8
        vmovdqu [rbx + 0x640 + \number * 32], ymm\number
        .endr
        .irp    name, vpbroadcastb, vpbroadcastw, vpbroadcastd, vpbroadcastq
        \name   ymm0, [rbx + 0x91]
        vmovdqu [rbx + 0x781], ymm0
        \name   xmm0, [rbx + 0x93]
        .endr
        .irp    name, vpmovsxbw, vpmovsxbd, vpmovsxbq, vpmovsxwd, vpmovsxwq, vpmovsxdq, vpmovzxbw, vpmovzxbd, vpmovzxbq, vpmovzxwd, vpmovzxwq, vpmovzxdq
        \name   ymm0, [rbx + 0x79]
        vmovdqu [rbx + 0x7a1], ymm0
        .endr
        .irp    mask, some, none, every
        vmovdqu ymm1, [rip + \mask]
        vpmaskmovd ymm2, ymm1, [rbx + 0xd3]
        vpmaskmovq ymm3, ymm1, [rbx + 0xd5]
        vpmaskmovd xmm4, xmm1, [rbx + 0xd7]
        vpmaskmovq xmm5, xmm1, [rbx + 0xd9]
        vpmaskmovd [rbx + 0x7c1], ymm1, ymm2
        vpmaskmovq [rbx + 0x7e1], ymm1, ymm3
        vpmaskmovd [rbx + 0x801], xmm1, xmm4
        vpmaskmovq [rbx + 0x811], xmm1, xmm5
        .endr

# Gathers: some, none, all; indexes positive and negative, of both widths.
        lea     r15, [rip + data + 0x80]
        .irp    mask, some, none, every
        .irp    name, vpgatherdd, vgatherdps
        vmovdqu ymm1, [rip + \mask]
        vmovdqu ymm2, [rip + indexes_32]
        \name   ymm3, [r15 + ymm2 * 4], ymm1
        vmovdqu [rbx + 0x821], ymm3
        vmovdqu [rbx + 0x841], ymm1     # the mask is clear afterwards
        vmovdqu ymm1, [rip + \mask]
        \name   xmm3, [r15 + xmm2 * 2 + 1], xmm1
        vmovdqu [rbx + 0x861], ymm3
        .endr
        .irp    name, vpgatherdq, vgatherdpd
        vmovdqu ymm1, [rip + \mask]
        vmovdqu ymm2, [rip + indexes_32]
        \name   ymm3, [r15 + xmm2 * 8], ymm1
        vmovdqu [rbx + 0x881], ymm3
        vmovdqu ymm1, [rip + \mask]
        \name   xmm3, [xmm2 * 1 + data + 0x83], xmm1
        vmovdqu [rbx + 0x8a1], ymm3
        .endr
        .irp    name, vpgatherqd, vgatherqps
        vmovdqu ymm1, [rip + \mask]
        vmovdqu ymm2, [rip + indexes_64]
        \name   xmm3, [r15 + ymm2 * 4], xmm1
        vmovdqu [rbx + 0x8c1], ymm3
        vmovdqu ymm1, [rip + \mask]
        \name   xmm3, [r15 + xmm2 * 4 + 3], xmm1
        vmovdqu [rbx + 0x8e1], ymm3
        .endr
        .irp    name, vpgatherqq, vgatherqpd
        vmovdqu ymm1, [rip + \mask]
        vmovdqu ymm2, [rip + indexes_64]
        \name   ymm3, [r15 + ymm2 * 8], ymm1
        vmovdqu [rbx + 0x901], ymm3
        vmovdqu ymm1, [rip + \mask]
        \name   xmm14, [r15 + xmm2 * 1 + 5], xmm1
        vmovdqu [rbx + 0x921], ymm14
        .endr
        .endr
no_avx2:
        vzeroupper
nothing:
        finish

        .data
        .balign 32
singles:
        .float  1.5, -2.25, 3.125, 1000.0, 0.5, 7.75, -1.0, 2.0, 9.5
        .balign 32
doubles:
        .double 1.5, -2.25, 3.125, 1000.0
shift:  .quad   3, 0
halves: .hword  0x3c00, 0xc000, 0x3555, 0x7bff, 1, 0x4248, 0x3800, 0xbc00
control:
        .long   0x1f80
some:   .long   0x80000000, 1, 0xffffffff, 0x7fffffff, 0, 0x80000001, 0xc0000000, 2
none:   .long   0, 1, 2, 0x7fffffff, 0, 0x1234, 0x5678, 0x7f7f7f7f
every:  .fill   32, 1, 0xff
last_only:
        .fill   7, 4, 0
        .long   -1
indexes_32:
        .long   0, 5, -3, 7, -8, 9, 2, 2
indexes_64:
        .quad   3, -4, 8, 3
        .text
