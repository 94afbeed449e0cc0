# AVX-512: 64 bytes at a time, merging and zeroing under masks, broadcasts, compression, gathers, scatters, mask registers.
        .include "memory.inc"
_start:
        needs_state "avx-512 state", 0xe6, nothing
        needs   avx512f, 7, ebx, 16, nothing
        needs   avx512dq, 7, ebx, 17, nothing
        needs   avx512bw, 7, ebx, 30, nothing
        needs   avx512vl, 7, ebx, 31, nothing
        lea     rbx, [rip + data]
        lea     r15, [rip + data + 0x400]
        mov     ecx, 4

# Mask registers.
        kmovq   k1, [rip + some]
        kmovq   k2, [rip + every]
        kmovw   k3, [rip + some]
        kmovb   k4, [rip + some]
        kmovd   k5, [rip + some]
        kxorq   k6, k6, k6
        kmovb   [rbx + 0x200], k1
        kmovw   [rbx + 0x202], k1
        kmovd   [rbx + 0x204], k1
        kmovq   [rbx + 0x208], k1
        kmovq   [rbx + 0x210], k3

# Whole registers.
        .irp    name, vmovaps, vmovapd, vmovdqa32, vmovdqa64
        \name   zmm0, [rbx + 0x40]
        \name   [rbx + 0x240], zmm0
        \name   zmm31, [r15 + rcx * 8 + 0x20]
        \name   [r15 + rcx * 8 + 0x60], zmm31
        .endr
        .irp    name, vmovups, vmovupd, vmovdqu8, vmovdqu16, vmovdqu32, vmovdqu64
        \name   zmm17, [rbx + 0x41]
        \name   [rbx + 0x281], zmm17
        \name   ymm18, [rbx + 0x43]
        \name   [rbx + 0x2c1], ymm18
        \name   xmm19, [rip + data + 0x45]
        \name   [rip + data + 0x2e1], xmm19
        .endr
        vmovntps [rbx + 0x300], zmm0
        vmovntdq [rbx + 0x340], zmm17
        vmovntdqa zmm20, [rbx + 0x80]
        vmovss  xmm21, [rbx + 0x91]
        vmovss  [rbx + 0x381], xmm21
        vmovsd  xmm21, [rbx + 0x93]
        vmovsd  [rbx + 0x385], xmm21
        vmovd   xmm21, dword ptr [rbx + 0x95]
        vmovq   qword ptr [rbx + 0x38d], xmm21

# Moves under a mask, merging and zeroing, to and from memory.
        .macro  masked name
        .irp    mask, k1, k2, k6
        \name   zmm22{\mask}, [rbx + 0x51]
        \name   zmm23{\mask}{z}, [rbx + 0x53]
        \name   ymm24{\mask}, [rbx + 0x55]
        \name   xmm25{\mask}{z}, [rbx + 0x57]
        \name   [rbx + 0x401]{\mask}, zmm22
        \name   [rbx + 0x441]{\mask}, ymm23
        \name   [rbx + 0x461]{\mask}, xmm24
        .endr
        vmovdqu64 [rbx + 0x480], zmm22
        vmovdqu64 [rbx + 0x4c0], zmm23
        .endm
        .irp    name, vmovups, vmovupd, vmovdqu8, vmovdqu16, vmovdqu32, vmovdqu64
        masked  \name
        .endr
        .irp    mask, k1, k6
        vmovaps zmm22{\mask}, [rbx + 0x80]
        vmovapd [rbx + 0x500]{\mask}, zmm22
        vmovdqa32 ymm22{\mask}{z}, [rbx + 0xa0]
        vmovdqa64 [rbx + 0x540]{\mask}, xmm22
        vmovss  xmm22{\mask}, [rbx + 0xa1]
        vmovsd  xmm22{\mask}{z}, [rbx + 0xa5]
        vmovss  [rbx + 0x551]{\mask}, xmm23
        vmovsd  [rbx + 0x555]{\mask}, xmm23
        .endr
        kmovq   k7, [rip + last_of_16]
        vmovdqu32 zmm22{k7}{z}, [data - 60]     # all but the last element lie before the data
        vmovdqu32 [data - 60]{k7}, zmm22

# Arithmetic: whole, under a mask, with one element for all.
        .irp    name, vaddps, vmulps, vmaxps, vandps, vpaddd, vpmulld, vpminsd, vpandd, vpsllvd
        \name   zmm0, zmm17, [rbx + 0x61]
        \name   zmm0, zmm17, [rbx + 0x63]{1to16}
        \name   ymm0, ymm17, [rbx + 0x65]{1to8}
        .irp    mask, k1, k6
        \name   zmm0{\mask}, zmm17, [rbx + 0x67]
        \name   zmm0{\mask}{z}, zmm17, [rbx + 0x69]
        \name   zmm0{\mask}, zmm17, [rbx + 0x6b]{1to16}
        \name   xmm0{\mask}, xmm17, [rbx + 0x6d]
        .endr
        vmovdqu64 [rbx + 0x580], zmm0
        .endr
        .irp    name, vaddpd, vdivpd, vxorpd, vpaddq, vpmullq, vpmaxuq, vporq, vpsravq, vpmuludq, vpmuldq
        \name   zmm1, zmm18, [rbx + 0x71]
        \name   zmm1, zmm18, [rbx + 0x73]{1to8}
        .irp    mask, k1, k6
        \name   zmm1{\mask}, zmm18, [rbx + 0x75]
        \name   ymm1{\mask}{z}, ymm18, [rbx + 0x77]{1to4}
        .endr
        vmovdqu64 [rbx + 0x5c0], zmm1
        .endr
        .irp    name, vpaddb, vpsubusb, vpavgb, vpmaxsb, vpaddw, vpmullw, vpsllvw
        \name   zmm2, zmm19, [rbx + 0x81]
        .irp    mask, k1, k6
        \name   zmm2{\mask}, zmm19, [rbx + 0x83]
        \name   xmm2{\mask}{z}, xmm19, [rbx + 0x85]
        .endr
        vmovdqu64 [rbx + 0x600], zmm2
        .endr
        .irp    mask, k1, k6
        vaddss  xmm3{\mask}, xmm19, [rbx + 0x91]
        vsqrtsd xmm3{\mask}{z}, xmm19, [rbx + 0x93]
        vfmadd213ps zmm3{\mask}, zmm19, [rbx + 0x95]
        vpternlogd zmm3{\mask}, zmm19, [rbx + 0x97], 0x96
        vpternlogq zmm3, zmm19, [rbx + 0x99]{1to8}, 0x96
        vblendmps zmm4{\mask}, zmm19, [rbx + 0x9b]
        vpblendmb zmm4{\mask}, zmm4, [rbx + 0x9d]
        vpcmpd  k7{\mask}, zmm19, [rbx + 0x9f], 1
        kmovq   [rbx + 0x640], k7
        vcmpps  k7, zmm19, [rbx + 0xa1]{1to16}, 1
        kmovq   [rbx + 0x648], k7
        vptestmb k7{\mask}, zmm19, [rbx + 0xa3]
        kmovq   [rbx + 0x650], k7
        vpabsd  zmm4{\mask}, [rbx + 0xa5]
        vpslld  zmm4{\mask}, [rbx + 0xa7], 3
        vprolq  zmm4{\mask}, [rbx + 0xa9], 3
        vsqrtps zmm5{\mask}, [rbx + 0xab]
        vgetexppd zmm5{\mask}, [rbx + 0xad]
        vrndscaleps zmm5{\mask}, [rbx + 0xaf], 1
        vcvtdq2ps zmm6{\mask}, [rbx + 0xb1]
        vcvtps2pd zmm6{\mask}, [rbx + 0xb3]
        vcvtps2pd zmm6{\mask}, [rbx + 0xb5]{1to8}
        vcvtpd2ps ymm6{\mask}, zmmword ptr [rbx + 0xb7]
        vcvtudq2pd zmm6{\mask}, [rbx + 0xb9]
        vcvtqq2pd zmm6{\mask}, [rbx + 0xbb]
        vcvtph2ps zmm6{\mask}, [rbx + 0xbd]
        vcvtps2ph [rbx + 0x661]{\mask}, zmm6, 0
        vmovdqu64 [rbx + 0x680], zmm3
        vmovdqu64 [rbx + 0x6c0], zmm4
        vmovdqu64 [rbx + 0x700], zmm5
        vmovdqu64 [rbx + 0x740], zmm6
        .endr

# Those that use memory in another order than element by element, under a mask, read all of it.
        .irp    mask, k1, k6
        vpunpckldq zmm7{\mask}, zmm17, [rbx + 0xc1]
        vunpckhpd zmm7{\mask}, zmm7, [rbx + 0xc3]
        vpshufb zmm7{\mask}, zmm7, [rbx + 0xc5]
        vpshufd zmm7{\mask}, [rbx + 0xc7], 0x1b
        vshufps zmm7{\mask}, zmm7, [rbx + 0xc9], 0x1b
        vshufi32x4 zmm7{\mask}, zmm7, [rbx + 0xcb], 0x1b
        vpermd  zmm7{\mask}, zmm17, [rbx + 0xcd]
        vpermq  zmm7{\mask}, [rbx + 0xcf], 0x1b
        vpermt2d zmm7{\mask}, zmm17, [rbx + 0xd1]
        vpackssdw zmm7{\mask}, zmm7, [rbx + 0xd3]
        valignd zmm7{\mask}, zmm7, [rbx + 0xd5], 3
        vpalignr zmm7{\mask}, zmm7, [rbx + 0xd7], 3
        vpslld  zmm7{\mask}, zmm7, [rip + shift]
        vinserti32x4 zmm7{\mask}, zmm7, [rbx + 0xd9], 2
        vpmaddwd zmm7{\mask}, zmm7, [rbx + 0xdb]
        vmovdqu64 [rbx + 0x780], zmm7
        .endr
        vinserti64x4 zmm7, zmm7, [rbx + 0xdd], 1
        vextracti32x4 [rbx + 0x7c1], zmm7, 3
        vextracti64x4 [rbx + 0x7d1], zmm7, 1
        vextracti32x4 [rbx + 0x7f1]{k1}, zmm7, 2
        vextractf64x4 [rbx + 0x801]{k1}, zmm7, 0

# Broadcasts.
        .irp    mask, k1, k6
        vbroadcastss zmm8{\mask}, [rbx + 0xe1]
        vbroadcastsd zmm8{\mask}{z}, [rbx + 0xe3]
        vpbroadcastb zmm9{\mask}, [rbx + 0xe5]
        vpbroadcastw ymm9{\mask}, [rbx + 0xe7]
        vpbroadcastd xmm9{\mask}, [rbx + 0xe9]
        vpbroadcastq zmm9{\mask}{z}, [rbx + 0xeb]
        .endr
        vbroadcastf32x4 zmm10, [rbx + 0xed]
        vbroadcasti64x4 zmm11, [rbx + 0xef]
        vbroadcasti32x2 zmm12, [rbx + 0xf1]
        vpbroadcastd zmm13, [rbx + 0xf3]
        .irp    number, 8, 9, 10, 11, 12, 13
        vmovdqu64 [rbx + 0x840 + \number * 8], zmm\number
        .endr

# Widening and narrowing.
        .irp    mask, k1, k6
        vpmovzxbw zmm14{\mask}, [rbx + 0x11]
        vpmovsxbd zmm14{\mask}, [rbx + 0x13]
        vpmovzxbq zmm14{\mask}, [rbx + 0x15]
        vpmovsxdq ymm14{\mask}{z}, [rbx + 0x17]
        vpmovwb [rbx + 0x901]{\mask}, zmm14
        vpmovdb [rbx + 0x921]{\mask}, zmm14
        vpmovdw [rbx + 0x931]{\mask}, zmm14
        vpmovqb [rbx + 0x951]{\mask}, zmm14
        vpmovqw [rbx + 0x959]{\mask}, ymm14
        vpmovqd [rbx + 0x961]{\mask}, zmm14
        vpmovsdb [rbx + 0x981]{\mask}, zmm14
        vpmovusqw [rbx + 0x991]{\mask}, zmm14
        .endr
        vpmovzxwd zmm14, [rbx + 0x19]
        vpmovdb [rbx + 0x9a1], zmm14
        vpmovqb [rbx + 0x9b1], xmm14

# Compression and expansion.
        .irp    mask, k1, k2, k6
        vpcompressd [rbx + 0xa01]{\mask}, zmm17
        vpcompressq [rbx + 0xa41]{\mask}, zmm17
        vcompressps [rbx + 0xa81]{\mask}, ymm17
        vcompresspd [rbx + 0xaa1]{\mask}, xmm17
        vpexpandd zmm15{\mask}, [rbx + 0x1b]
        vpexpandq zmm15{\mask}, [rbx + 0x1d]
        vexpandps ymm15{\mask}{z}, [rbx + 0x1f]
        vexpandpd zmm15{\mask}{z}, [rbx + 0x21]
        vmovdqu64 [rbx + 0xac1], zmm15
        .endr
        vpcompressd [rbx + 0xb01], zmm17
        vpexpandd zmm15, [rbx + 0x23]

# Gathers and scatters, which clear their mask; indexes that meet in one place.
        lea     r15, [rip + data + 0x80]
        lea     r14, [rip + data + 0xc80]
        vmovdqu64 zmm26, [rip + indexes_32]
        vmovdqu64 zmm27, [rip + indexes_64]
        .macro  indexed name, elements, address:vararg
        .irp    mask, some, every, none
        kmovq   k1, [rip + \mask]
        \name   \elements\(){k1}, \address
        kmovq   [rbx + 0x220], k1
        .endr
        vmovdqu64 [rbx + 0xb41], zmm28
        .endm
        .macro  scattered name, elements, address:vararg
        .irp    mask, some, every, none
        kmovq   k1, [rip + \mask]
        \name   \address\(){k1}, \elements
        kmovq   [rbx + 0x220], k1
        .endr
        .endm
        .irp    name, vpgatherdd, vgatherdps
        indexed \name, zmm28, [r15 + zmm26 * 4]
        indexed \name, ymm28, [r15 + ymm26 * 2]
        indexed \name, xmm28, [r15 + xmm26 * 1 + 3]
        .endr
        .irp    name, vpgatherdq, vgatherdpd
        indexed \name, zmm28, [r15 + ymm26 * 8]
        indexed \name, ymm28, [r15 + xmm26 * 8]
        indexed \name, xmm28, [xmm26 * 1 + data + 0x81]
        .endr
        .irp    name, vpgatherqd, vgatherqps
        indexed \name, ymm28, [r15 + zmm27 * 4]
        indexed \name, xmm28, [r15 + ymm27 * 4]
        indexed \name, xmm28, [r15 + xmm27 * 4]
        .endr
        .irp    name, vpgatherqq, vgatherqpd
        indexed \name, zmm28, [r15 + zmm27 * 8]
        indexed \name, ymm28, [r15 + ymm27 * 8]
        indexed \name, xmm28, [r15 + xmm27 * 1 + 5]
        .endr
        .irp    name, vpscatterdd, vscatterdps
        scattered \name, zmm17, [r14 + zmm26 * 4]
        scattered \name, ymm17, [r14 + ymm26 * 2]
        scattered \name, xmm17, [r14 + xmm26 * 1 + 3]
        .endr
        .irp    name, vpscatterdq, vscatterdpd
        scattered \name, zmm17, [r14 + ymm26 * 8]
        scattered \name, ymm17, [r14 + xmm26 * 8]
        .endr
        .irp    name, vpscatterqd, vscatterqps
        scattered \name, ymm17, [r14 + zmm27 * 4]
        scattered \name, xmm17, [r14 + ymm27 * 4]
        .endr
        .irp    name, vpscatterqq, vscatterqpd
        scattered \name, zmm17, [r14 + zmm27 * 8]
        scattered \name, xmm17, [r14 + xmm27 * 1 + 5]
        .endr

        needs   avx512vbmi2, 7, ecx, 6, no_vbmi2
        lea     rbx, [rip + data]
        .irp    mask, some, every, none
        kmovq   k1, [rip + \mask]
        vpcompressb [rbx + 0xd01]{k1}, zmm17
        vpcompressw [rbx + 0xd41]{k1}, zmm17
        vpexpandb zmm15{k1}, [rbx + 0x25]
        vpexpandw ymm15{k1}{z}, [rbx + 0x27]
        vpshldd zmm15{k1}, zmm15, [rbx + 0x29], 3
        vpshldvw zmm15{k1}, zmm17, [rbx + 0x2b]
        vmovdqu64 [rbx + 0xd81], zmm15
        .endr
no_vbmi2:
        needs   avx512_vnni, 7, ecx, 11, no_vnni
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vpdpbusd zmm15{k1}, zmm17, [rbx + 0x2d]
        vpdpwssd zmm15{k1}, zmm17, [rbx + 0x2f]{1to16}
        vpdpwssds zmm15, zmm17, [rbx + 0x31]
        vmovdqu64 [rbx + 0xdc1], zmm15
no_vnni:
        needs   avx512_bitalg, 7, ecx, 12, no_bitalg
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vpopcntb zmm15{k1}, [rbx + 0x33]
        vpopcntw zmm15{k1}, [rbx + 0x35]
        vmovdqu64 [rbx + 0xe01], zmm15
no_bitalg:
        needs   avx512_vpopcntdq, 7, ecx, 14, no_vpopcntdq
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vpopcntd zmm15{k1}, [rbx + 0x37]{1to16}
        vpopcntq zmm15{k1}, [rbx + 0x39]
        vmovdqu64 [rbx + 0xe41], zmm15
no_vpopcntdq:
        needs   avx512cd, 7, ebx, 28, no_conflict
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vplzcntd zmm15{k1}, [rbx + 0x3b]
        vpconflictd zmm16{k1}, [rbx + 0x3d]
        vmovdqu64 [rbx + 0xe81], zmm16
no_conflict:
        needs   avx512ifma, 7, ebx, 21, no_ifma
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vpmadd52luq zmm15{k1}, zmm17, [rbx + 0x3f]
        vpmadd52huq zmm15{k1}, zmm17, [rbx + 0x41]{1to8}
        vmovdqu64 [rbx + 0xec1], zmm15
no_ifma:
        needs   vaes, 7, ecx, 9, no_vaes
        lea     rbx, [rip + data]
        vaesenc zmm15, zmm17, [rbx + 0x43]
        vmovdqu64 [rbx + 0xf01], zmm15
no_vaes:
        needs   gfni, 7, ecx, 8, no_gfni
        lea     rbx, [rip + data]
        kmovq   k1, [rip + some]
        vgf2p8mulb zmm15{k1}, zmm17, [rbx + 0x45]
        vgf2p8affineqb zmm15{k1}, zmm17, [rbx + 0x47], 1
        vmovdqu64 [rbx + 0xf41], zmm15
no_gfni:
        vzeroupper
nothing:
        finish

        .data
        .balign 64
some:   .quad   0x8005a50000018005
every:  .quad   -1
none:   .quad   0
last_of_16:
        .quad   0x8000
shift:  .quad   3, 0
indexes_32:
        .long   0, 5, -3, 7, -8, 9, 2, 2, 11, 12, -13, 14, 15, 16, -17, 2
indexes_64:
        .quad   3, -4, 8, 3, 9, -10, 0, 12
        .text
