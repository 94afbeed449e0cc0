# Operands relative to gs in every form, and every way to read and write its base.
        .include "memory.inc"

        .macro  accesses
        mov     rax, gs:[0x10]
        mov     gs:[0x18], rax
        mov     rdx, gs:[-8]
        mov     gs:[-0x10], rdx
        cmp     byte ptr gs:[-0x18], 0x68
        keep_flags
        add     dword ptr gs:[-0x20], 3
        adc     qword ptr gs:[-0x28], 4 # flags pass from one to the next
        keep_flags
        mov     qword ptr gs:[-0x28], -5
        movzx   edx, word ptr gs:[-0x2a]
        imul    rdx, gs:[-0x38], 7
        keep    rdx
        mov     rdx, -0x40
        inc     byte ptr gs:[rdx]
        mov     ecx, 3
        mov     eax, gs:[rcx * 8]
        add     gs:[rcx * 8 + 8], eax
        mov     edx, 0x20
        mov     gs:[rdx + rcx * 4 + 1], cl
        mov     gs:[rdx + rcx * 4 + 2], dh
        mov     ah, gs:[rdx + rcx * 2]
        add     ah, gs:[rcx + rdx]
        keep    rax
        mov     r15d, 0x40
        mov     r15, gs:[r15]
        keep    r15
        mov     r15d, 8
        mov     gs:[rdx + r15 * 4], r15
        mov     r14, gs:[r15 + rdx]
        keep    r14
        add     gs:[r15 + 0x50], r15
        mov     rsi, -8
        mov     rbp, 0x10
        mov     rdi, gs:[rbp + rsi + 0x50]
        keep    rdi
        mov     rax, gs:[rbp + 0x48]
        keep    rax
        mov     rdx, 0x1234567800000010
        mov     eax, gs:[edx + 0x20]    # the base is added to 32 bits
        keep    rax
        add     gs:[edx + ecx * 4 + 0x24], eax
        .byte   0x67
        mov     eax, gs:[0x28]
        keep    rax
        mov     r12, rsp                # the stack pointer as an offset
        mov     esp, 0x80
        mov     rax, gs:[rsp + 8]
        mov     gs:[rsp + rcx * 8], rax
        mov     rsp, r12
        push    qword ptr gs:[0x58]
        pop     qword ptr gs:[0x60]
        push    word ptr gs:[0x58]
        pop     word ptr gs:[0x62]
        lock inc dword ptr gs:[0x68]
        lock add dword ptr gs:[0x68], ecx
        lock or byte ptr gs:[rcx + 0x68], 0x21
        keep_flags
        xchg    gs:[0x6c], eax
        mov     eax, gs:[0x70]
        cmpxchg gs:[0x70], ecx
        cmpxchg gs:[0x74], ecx
        keep_flags
        xadd    gs:[0x78], rcx
        mov     rax, gs:[0x80]
        mov     rdx, gs:[0x88]
        mov     rbx, 0x1111
        mov     rcx, 0x2222
        cmpxchg8b gs:[0x80]
        cmpxchg8b gs:[0x80]
        mov     ecx, 3
        bts     gs:[0x78], ecx
        mov     eax, 100
        btc     gs:[0x78], eax
        bt      dword ptr gs:[0x78], 5
        keep_flags
        setc    gs:[0x79]
        cmovc   rax, gs:[0x90]
        shl     dword ptr gs:[0x94], cl
        neg     qword ptr gs:[0x98]
        keep_flags
        mul     dword ptr gs:[0x84]
        keep    rax
        movups  xmm0, gs:[0x81]
        movups  gs:[0x91], xmm0
        movdqu  xmm3, gs:[0x55]
        paddd   xmm0, xmm3
        movhps  xmm0, gs:[0x33]
        pinsrw  xmm0, word ptr gs:[0x35], 3
        movups  gs:[0xa1], xmm0
        movss   xmm1, gs:[0x44]
        movq    gs:[0xd1], xmm1
        fild    word ptr gs:[0x10]
        fstp    tbyte ptr gs:[0xa1]
        fnstcw  gs:[0xc8]
        fldcw   gs:[0xc8]
        stmxcsr gs:[0xcc]
        .endm

        .macro  strings
        mov     esi, 0x18
        lea     rdi, [rip + data + 0x700]
        lods    al, byte ptr gs:[rsi]
        movs    word ptr [rdi], word ptr gs:[rsi]
        mov     ecx, 5
        rep movs byte ptr [rdi], byte ptr gs:[rsi]
        mov     ecx, 300
        rep lods eax, dword ptr gs:[rsi]
        keep    rax
        mov     esi, 0x20
        std
        mov     ecx, 3
        rep movs dword ptr [rdi], dword ptr gs:[rsi]
        cld
        cmps    dword ptr gs:[rsi], dword ptr [rdi]
        keep_flags
        mov     ecx, 9
        repe cmps byte ptr gs:[rsi], byte ptr [rdi]
        keep_flags
        keep    rcx
        .byte   0x65                    # gs: on the destination means nothing
        stosb
        .byte   0x65
        lea     rax, [rcx + 0x10]       # and adds no base to an address
        keep    rax
        .byte   0x65
        nop     dword ptr [rax + 0x10]
        prefetcht0 gs:[0x20]
        clflush gs:[0x40]
        .endm

        .macro  transfers
        lea     rax, [rip + plain]
        mov     gs:[0xb0], rax
        call    qword ptr gs:[0xb0]
        lea     rax, [rip + 1f]
        mov     gs:[0xb8], rax
        jmp     qword ptr gs:[0xb8]
1:      mov     ecx, 0x16
        mov     edx, 4
        call    qword ptr gs:[rcx * 8 + rdx - 4]
        mov     r15d, 0xb0
        call    qword ptr gs:[r15]
        mov     rcx, 0x77777777000000b0
        call    qword ptr gs:[ecx]
        mov     r12, rsp
        lea     rsp, [rip + data + 0xf00]
        call    qword ptr gs:[0xb0]
        mov     rsp, r12
        .endm

        .macro  others
1:      movabs  rax, gs:[0x10]
        keep    rax
        movabs  al, gs:[0x19]
        keep    rax
        movabs  gs:[0xc0], eax
        movabs  gs:[0xc6], ax
        mov     ebx, 0x10
        mov     eax, 2
        xlat    byte ptr gs:[rbx]
        keep    rax
        movups  xmm0, gs:[0x30]
        movups  xmm1, gs:[0x70]
        mov     edi, 0x38
        .byte   0x65
        maskmovdqu xmm0, xmm1
        mov     rdi, 0x4444444400000048
        .byte   0x65, 0x67
        maskmovdqu xmm0, xmm1
        keep    rdi
        .endm

        .macro  vectors
        vmovups ymm0, gs:[0x21]
        vpaddd  ymm1, ymm0, gs:[rcx + 0x11]
        vmovups gs:[0x51], ymm1
        vpmaskmovd xmm2, xmm1, gs:[0x14]
        vpmaskmovd gs:[rdx + 0x54], xmm1, xmm2
        vpcmpeqd xmm3, xmm3, xmm3
        vpsrld  xmm4, xmm3, 29
        vpgatherdd xmm5, gs:[rdx + xmm4 * 4 + 0x20], xmm3
        vmovups gs:[0x64], xmm5
        vpcmpeqd xmm3, xmm3, xmm3
        vpgatherdd xmm5, gs:[xmm4 * 2], xmm3
        vmovups gs:[0x74], xmm5
        vzeroupper
        .endm

        .macro  wide_vectors
        mov     eax, 0x5a5a
        kmovw   k1, eax
        vmovdqu32 zmm0, gs:[0x20]
        vmovdqu32 zmm1{k1}{z}, gs:[rcx + 0x24]
        vmovdqu32 gs:[0x40]{k1}, zmm0
        vpaddd  zmm2, zmm0, dword ptr gs:[0x30]{1to16}
        vpaddd  zmm2{k1}, zmm2, zmmword ptr gs:[0x40]
        vpcompressd gs:[rdx + 0x80]{k1}, zmm2
        vpsrld  zmm3, zmm2, 27
        kmovw   k2, eax
        vpgatherdd zmm4{k2}, gs:[rdx + zmm3 * 4]
        kmovw   k2, eax
        vpscatterdd gs:[zmm3 * 4 + 0x40]{k2}, zmm4
        vzeroupper
        .endm

        .macro  set_base place
        mov     eax, 158                # arch_prctl
        mov     edi, 0x1001             # ARCH_SET_GS
        lea     rsi, [rip + \place]
        syscall
        keep    rax
        .endm

        .macro  get_base
        mov     eax, 158
        mov     edi, 0x1004             # ARCH_GET_GS
        lea     rsi, [rip + sink]
        syscall
        mov     rdx, [rip + sink]
        keep    rax
        keep    rdx
        .endm

_start:
        get_base                        # 0
        set_base data+0x100
        get_base
        accesses
        strings
        transfers
        others
        set_base data+0x201
        accesses
        strings
        transfers
        others
        mov     eax, 158                # of the kernel, not canonical, out of reach
        mov     edi, 0x1001
        mov     rsi, 0xffff800000000000
        syscall
        keep    rax
        mov     eax, 158
        mov     rsi, 0x1234567812345678
        syscall
        keep    rax
        mov     eax, 158
        mov     edi, 0x1004             # nowhere to write to
        mov     esi, 8
        syscall
        keep    rax
        get_base

        mov     eax, gs                 # the selector, which no program has set
        keep    rax
        push    gs
        pop     rax
        keep    rax

        mov     eax, 7                  # avx2
        xor     ecx, ecx
        cpuid
        bt      ebx, 5
        jc      1f
        lacks   avx2
        jmp     no_avx2
1:      mov     ecx, 4
        mov     edx, 8
        vectors
no_avx2:
        needs_state "avx512 state", 0xe6, no_avx512
        needs   "avx512f", 7, ebx, 16, no_avx512
        mov     ecx, 4
        mov     edx, 8
        wide_vectors
no_avx512:
        mov     eax, 7                  # fsgsbase, which the kernel must have enabled too
        xor     ecx, ecx
        cpuid
        bt      ebx, 0
        jc      1f
        lacks   fsgsbase
        jmp     no_fsgsbase
1:      rdgsbase r12
        keep    r12
        lea     rax, [rip + data + 0x203]
        wrgsbase rax
        accesses
        strings
        get_base
        lea     r13, [rip + data + 0x300]
        mov     r14d, 20
2:      wrgsbase r13                    # another base in every round
        mov     rax, gs:[8]
        add     gs:[0x10], rax
        rdgsbase rax
        keep    rax
        add     r13, 8
        dec     r14d
        jnz     2b
        rdgsbase r15
        keep    r15
        wrgsbase r15
        mov     rax, -0x10000           # a base may be anything that is canonical
        wrgsbase rax
        lea     rdx, [rip + data + 0x10048]
        mov     rax, gs:[rdx]
        keep    rax
        mov     rax, gs:[rip + data + 0x10040]
        keep    rax
        mov     gs:[rip + data + 0x10040], edx
        call    qword ptr gs:[rip + address + 0x10000]
        rdgsbase eax
        keep    rax
        lea     eax, [data + 0x400]
        wrgsbase eax
        mov     rax, gs:[0x10]
        keep    rax
        xor     eax, eax                # a selector of nothing
        mov     gs, eax
        rdgsbase rax
        keep    rax
        wrgsbase r12
        push    0
        pop     gs
        rdgsbase rax
        keep    rax
        wrgsbase r12
        mov     word ptr [rip + data + 0x7f0], 0
        mov     gs, word ptr [rip + data + 0x7f0]
        rdgsbase rax
        keep    rax
        mov     dword ptr [rip + data + 0x7f4], 0
        lgs     eax, [rip + data + 0x7f0]
        keep    rax
        rdgsbase rax
        keep    rax
        wrgsbase r12
        mov     rax, gs:[0x10]
        keep    rax
no_fsgsbase:
        finish

plain:  ret
        .data
address:
        .quad   plain
