# The stack: push, pop, call, ret, enter and leave in all their forms, and those that use or change rsp themselves.
        .include "memory.inc"
_start:
        mov     [rip + saved], rsp
        lea     rsp, [rip + data + 0x800]
        lea     rbx, [rip + data]
        mov     rax, 0x1122334455667788

        .irp    register, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
        push    \register
        .endr
        .irp    register, r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax
        pop     \register
        .endr
        .irp    register, ax, bx, si, r8w, r15w
        push    \register
        pop     \register
        .endr
        lea     rbx, [rip + data]

        push    5
        push    -5
        push    0x12345678
        push    -0x12345678
        .byte   0x66, 0x6a, 0x7f        # push word 0x7f
        .byte   0x66, 0x68, 0x34, 0x12  # push word 0x1234
        pop     ax
        pop     word ptr [rbx + 0x10]
        pop     qword ptr [rbx + 0x18]
        pop     qword ptr [rip + data + 0x20]
        pop     r15
        pop     rax
        push    qword ptr [rbx + 0x28]
        push    qword ptr [rip + data + 0x30]
        push    word ptr [rbx + 0x38]
        push    word ptr [rip + data + 0x3a]
        mov     ecx, 2
        push    qword ptr [rbx + rcx * 8 + 0x40]
        pop     qword ptr [rbx + rcx * 8 + 0x140]
        add     rsp, 4 + 16

# rsp as data.
        push    rsp
        pop     rax
        keep    rax
        push    rsp
        push    rsp
        pop     rcx
        pop     rdx
        lea     rax, [rsp - 0x40]
        push    rax
        pop     rsp                     # what was loaded, not eight more
        keep    rsp
        lea     rsp, [rip + data + 0x800]

# rsp as base: before it is decremented by push, after it is incremented by pop.
        push    0x1111
        push    0x2222
        push    qword ptr [rsp]
        push    qword ptr [rsp + 8]
        push    qword ptr [rsp + 16]
        pop     qword ptr [rsp]
        pop     qword ptr [rsp + 8]
        pop     qword ptr [rsp - 0x20]
        push    word ptr [rsp + 2]
        pop     word ptr [rsp + 2]
        mov     ecx, 2
        push    qword ptr [rsp + rcx * 4]
        pop     qword ptr [rsp + rcx * 8]
        lea     rsp, [rip + data + 0x800]
        mov     [rsp - 8], rsp          # the red zone
        mov     rax, [rsp - 8]
        xchg    rsp, [rsp - 8]
        add     [rsp - 0x10], rsp
        mov     r12, rsp
        mov     [r12 - 0x18], r12
        sub     rsp, 0x20
        add     rsp, [rip + twenty]

# Flags.
        cmp     rsp, 0
        pushf
        pop     rax
        pushfq
        .byte   0x66, 0x9c              # pushf, 16 bits
        std
        .byte   0x66, 0x9d              # popf, 16 bits
        popf
        keep_flags

# Frames.
        lea     rbp, [rip + data + 0x600]
        enter   0, 0
        leave
        enter   0x40, 0
        mov     [rbp - 8], rax
        mov     [rbp], rax
        mov     rax, [rbp + 8]
        lea     rcx, [rip + data + 0x600]
        mov     [rbp], rcx
        leave
        enter   0x10, 1
        mov     [rbp - 0x10], rbp
        enter   0x10, 2
        enter   8, 5
        leave
        leave
        leave
        mov     rsp, rbp
        lea     rsp, [rip + data + 0x800]
        push    rbp
        mov     rbp, rsp
        leave

# Calls and jumps through everything.
        call    plain
        call    plain_with_rep
        lea     rax, [rip + plain]
        call    rax
        lea     r15, [rip + plain]
        call    r15
        call    qword ptr [rip + table]
        lea     rcx, [rip + table]
        mov     edx, 1
        call    qword ptr [rcx + rdx * 8]
        lea     r12, [rip + table]
        call    [r12]
        lea     r15, [rip + table]
        call    [r15 + 8]
        lea     rax, [rip + plain]
        push    rax
        call    [rsp]                   # read before the return address is pushed
        call    [rsp]
        add     rsp, 8
        lea     rax, [rip + plain]
        mov     [rsp - 8], rax
        call    [rsp - 8]               # read where the return address is pushed
        push    3
        push    4
        call    takes_two               # ret 16
        keep    rax
        lea     rax, [rip + 1f]
        push    rax
        ret
1:      lea     rax, [rip + 1f]
        sub     rsp, 8
        push    rax
        ret     8
1:      jmp     qword ptr [rip + jumps]
landed: lea     rcx, [rip + jumps]
        mov     eax, 1
        jmp     qword ptr [rcx + rax * 8]
landed_again:
        lea     rax, [rip + landed_last]
        push    rax
        jmp     qword ptr [rsp]
landed_last:
        pop     rax
        call    1f                      # to the next instruction
1:      pop     rax
        mov     rsp, [rip + saved]
        finish

plain:  inc     qword ptr [rip + data + 0x900]
        ret
plain_with_rep:
        rep ret
takes_two:
        mov     rax, [rsp + 8]
        imul    rax, [rsp + 16]
        ret     16

        .data
table:  .quad   plain, plain_with_rep
jumps:  .quad   landed, landed_again
twenty: .quad   0x20
        .text
