# mlsTest, after Myers 2014, section 4.2.3 (Figures 4.17 to 4.21): loads and stores of bytes, of extended precision and of
# AVX vectors; then, as the text but none of its figures has it, of the sizes between.
#
# Written anew from the description, as a compiler without optimisation would have it. The section is placed by the
# linker so that the instructions have the addresses of the figures, and the stack is moved to where it was in the runs that
# they show. What is between the instructions shown is ours.
        .intel_syntax noprefix

# The figures' stack pointers: of Figure 4.18; of Figure 4.20 and line 1 of Figure 4.21; of the rest of Figure 4.21.
        .set    STACK_1, 0x7fff19df5fc0
        .set    STACK_2, 0x7fff1a03b900
        .set    STACK_3, 0x7fff30833bc0
        .set    i, 0x1dc

# Goes on at an address of the figures.
        .macro  at address
        .org    \address - 0x4004c4, 0x90
        .endm

        .section .rodata
        .balign 32
A:      .float  8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0
B:      .float  9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0
addresses:
        .string "i address: %p\nuint8 address: %p\nsint8 address: %p\nextendedPre80 address: %p\n"
no_avx: .ascii  "this machine has no avx\n"
        .set    no_avx_length, . - no_avx

        .section seed_text, "ax", @progbits
        .globl  main
        .type   main, @function
main:
        push    rbp
        mov     rbp, rsp
        push    rbx
        push    rbx
        call    prepare
        mov     ebx, eax
        movabs  rsp, STACK_1
        jmp     example_1

        at      0x40056a
example_1:                              # uint8[i] = i, sint8[i] = -i
        mov     dword ptr [rsp + i], 0
        jmp     2f
1:      mov     eax, [rsp + i]
        mov     edx, [rsp + i]          # 0x40057e
        cdqe
        mov     [rsp + rax + 0x1c0], dl # 0x400587
        mov     eax, [rsp + i]
        mov     edx, [rsp + i]          # 0x400595
        neg     edx
        cdqe
        mov     [rsp + rax + 0x1a0], dl # 0x4005a0
        mov     eax, [rsp + i]          # 0x4005a7
        add     eax, 1
        mov     [rsp + i], eax
2:      mov     eax, [rsp + i]          # 0x4005b8
        cmp     eax, 16
        jle     1b
        mov     dword ptr [rsp + i], 0
        jmp     4f
3:      mov     eax, [rsp + i]          # 0x4005d1
        cdqe
        movzx   eax, byte ptr [rsp + rax + 0x1c0]       # 0x4005da
        mov     eax, [rsp + i]
        cdqe
        movzx   eax, byte ptr [rsp + rax + 0x1a0]       # 0x4005eb
        mov     eax, [rsp + i]
        add     eax, 1
        mov     [rsp + i], eax
4:      mov     eax, [rsp + i]          # 0x400604
        cmp     eax, 16
        jle     3b
        movabs  rsp, STACK_2
        jmp     example_2

        at      0x400711
example_2:                              # extendedPre80[i] = i
        mov     dword ptr [rsp + i], 0
        jmp     2f
1:      mov     ecx, [rsp + i]
        mov     eax, [rsp + i]
        mov     [rsp + 0x1c], eax       # 0x40072c
        fild    dword ptr [rsp + 0x1c]  # 0x400730
        movsxd  rax, ecx
        shl     rax, 4
        lea     rdx, [rsp + 0x80]
        add     rax, rdx
        nop     dword ptr [rax + 0]
        at      0x40074d
        fstp    tbyte ptr [rax]         # 0x40074d
        mov     eax, [rsp + i]
        add     eax, 1
        mov     [rsp + i], eax          # 0x400759
2:      mov     eax, [rsp + i]          # 0x400760
        cmp     eax, 7
        jle     1b
        mov     dword ptr [rsp + i], 0  # 0x40076c
        jmp     4f
3:      mov     ecx, [rsp + i]          # extendedPre80[i] = extendedPre80[i] + i
        movsxd  rax, ecx
        shl     rax, 4
        lea     rdx, [rsp + 0x80]
        add     rax, rdx
        jmp     5f
        at      0x40079f
5:      fld     tbyte ptr [rax]         # 0x40079f
        mov     eax, [rsp + i]          # 0x4007a1
        mov     [rsp + 0x1c], eax       # 0x4007a8
        fild    dword ptr [rsp + 0x1c]  # 0x4007ac
        faddp
        movsxd  rax, ecx
        shl     rax, 4
        add     rax, rdx
        jmp     6f
        at      0x4007cb
6:      fstp    tbyte ptr [rax]         # 0x4007cb
        mov     eax, [rsp + i]
        add     eax, 1
        mov     [rsp + i], eax
4:      mov     eax, [rsp + i]          # 0x4007de
        cmp     eax, 7
        jle     3b
        test    ebx, ebx
        jz      more
        vmovaps ymm0, [rip + A]
        jmp     example_3

        at      0x4008ba
example_3:                              # R = _mm256_hadd_ps(A, B)
        vmovaps [rsp + 0x60], ymm0
        movabs  rsp, STACK_3
        vmovaps [rsp + 0x60], ymm0
        vmovaps ymm0, [rip + B]
        jmp     1f
        at      0x400986
1:      vmovaps [rsp + 0x40], ymm0
        vmovaps ymm0, [rsp + 0x60]
        jmp     2f
        at      0x4009b3
2:      vhaddps ymm0, ymm0, [rsp + 0x40]
        nop     dword ptr [rax]
        vmovaps [rsp + 0x20], ymm0      # 0x4009bc
        vzeroupper

# Words, doublewords, quadwords and octawords: stored with i and -i in turns, then loaded.
more:   movabs  rsp, STACK_1
        .macro  array store, load, offset, size
        xor     ecx, ecx
1:      mov     rax, rcx
        test    ecx, 1
        jz      2f
        neg     rax
2:      \store  [rsp + rcx * \size + \offset], \load
        inc     ecx
        cmp     ecx, 17
        jne     1b
        xor     ecx, ecx
3:      mov     \load, [rsp + rcx * \size + \offset]
        inc     ecx
        cmp     ecx, 17
        jne     3b
        .endm
        array   mov, ax, 0x20, 2
        array   mov, eax, 0x50, 4
        array   mov, rax, 0xa0, 8
        xor     ecx, ecx
1:      mov     rax, rcx
        movq    xmm0, rax
        neg     rax
        movq    xmm1, rax
        punpcklqdq xmm0, xmm1
        shl     rcx, 4
        movdqa  [rsp + rcx + 0x130], xmm0
        movdqa  xmm2, [rsp + rcx + 0x130]
        shr     rcx, 4
        inc     ecx
        cmp     ecx, 4
        jne     1b

        lea     rsp, [rbp - 16]
        pop     rbx
        pop     rbx
        pop     rbp
        xor     eax, eax
        ret
        .size   main, . - main

# Maps the stacks and prints addresses; eax: whether there is AVX.
        .text
prepare:
        push    rbx
        movabs  rdi, STACK_1 - 0xfc0
        call    map_stack
        movabs  rdi, STACK_2 - 0x900
        call    map_stack
        movabs  rdi, STACK_3 - 0xbc0
        call    map_stack
        mov     edi, offset addresses
        movabs  rsi, STACK_1 + i
        movabs  rdx, STACK_1 + 0x1c0
        movabs  rcx, STACK_1 + 0x1a0
        movabs  r8, STACK_2 + 0x80
        xor     eax, eax
        call    printf
        mov     eax, 1
        cpuid
        and     ecx, 0x18000000         # osxsave, avx
        cmp     ecx, 0x18000000
        jne     1f
        xor     ecx, ecx
        xgetbv
        and     eax, 6
        cmp     eax, 6
        jne     1f
        mov     eax, 1
        pop     rbx
        ret
1:      mov     edi, 2
        mov     esi, offset no_avx
        mov     edx, no_avx_length
        call    write
        xor     eax, eax
        pop     rbx
        ret

# Two pages at rdi.
map_stack:
        push    rdi
        mov     esi, 0x2000
        mov     edx, 3
        mov     ecx, 0x100022           # private, anonymous, fixed but not in place of another
        mov     r8d, -1
        xor     r9d, r9d
        call    mmap
        pop     rdi
        cmp     rax, rdi
        jne     abort
        ret
        .section .note.GNU-stack, "", @progbits
