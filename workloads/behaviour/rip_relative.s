# Operands relative to the instruction pointer, with and without an immediate after them, as data and as targets.
        .include "freestanding.inc"
        .globl  _start
_start:
        mov     rbx, [rip + cell]               # 0x1000
        add     qword ptr [rip + cell], 0x234   # 8-bit and 32-bit immediates move the end of the instruction
        add     qword ptr [rip + cell], 1
        add     rbx, [rip + cell]               # 0x1000 + 0x1235
        cmp     dword ptr [rip + cell], 0x1235
        jne     wrong
        test    byte ptr [rip + cell], 0x35
        jz      wrong
        mov     word ptr [rip + other], 0x1111
        movzx   eax, word ptr [rip + other]
        add     rbx, rax                        # + 0x1111
        push    qword ptr [rip + cell]
        pop     qword ptr [rip + other]
        mov     rax, [rip + other]
        add     rbx, rax                        # + 0x1235
        lea     rax, [rip + cell]
        add     rbx, [rax]                      # + 0x1235
        lock inc qword ptr [rip + cell]
        mov     ecx, 1
        lock xadd [rip + cell], rcx             # rcx = 0x1236
        add     rbx, rcx
        mov     eax, 0x1237
        mov     edx, 5
        cmpxchg [rip + cell], rdx
        jne     wrong
        xchg    [rip + cell], rdx               # rdx = 5
        add     rbx, rdx
        movdqu  xmm0, [rip + vector]
        pextrw  eax, xmm0, 3
        add     rbx, rax                        # + 4
        shl     qword ptr [rip + cell], 1
        imul    rax, [rip + cell], 3
        call    qword ptr [rip + pointer]       # + 7
        jmp     qword ptr [rip + jump_pointer]
        jmp     wrong
finish: report  rbx                             # 0x69f6
        exit    0
wrong:  exit    1

add_seven:
        add     rbx, 7
        ret

        .data
        .balign 16
cell:   .quad   0x1000
other:  .quad   0
vector: .word   1, 2, 3, 4, 5, 6, 7, 8
pointer:
        .quad   add_seven
jump_pointer:
        .quad   finish
