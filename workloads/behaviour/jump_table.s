# Indirect jumps: through a table in memory, through registers, through memory relative to rip and to the stack.
        .include "freestanding.inc"
        .globl  _start
_start:
        xor     ebx, ebx
        xor     ecx, ecx
next:   cmp     ecx, 40
        jae     done
        mov     eax, ecx
        and     eax, 3
        lea     rdx, [rip + table]
        jmp     qword ptr [rdx + rax * 8]
zero:   inc     rbx
        inc     ecx
        jmp     next
one:    add     rbx, 10
        inc     ecx
        lea     rax, [rip + next]
        jmp     rax
two:    add     rbx, 100
        inc     ecx
        jmp     qword ptr [rip + pointer_to_next]
three:  add     rbx, 1000
        inc     ecx
        lea     rax, [rip + next]
        push    rax
        pop     rdx
        push    rdx
        add     rsp, 8
        jmp     qword ptr [rsp - 8]
done:   report  rbx                     # 10 * 1111 = 11110 = 0x2b66
        exit    0

        .data
table:  .quad   zero, one, two, three
pointer_to_next:
        .quad   next
