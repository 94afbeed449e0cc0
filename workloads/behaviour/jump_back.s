# Unconditional jumps backwards, to nearby and far code, and code laid out in the reverse order of its execution.
        .include "freestanding.inc"
        .globl  _start
finish: report  rbx                     # 3 * 111 + 40 = 373 = 0x175
        exit    0
        .skip   300, 0x90               # out of reach of a short jump
third:  add     rbx, 100
        dec     r12d
        jz      leave_loop
        jmp     first_again
second: add     rbx, 10
        jmp     third
first:  inc     rbx
        jmp     second
first_again:
        jmp     first
leave_loop:
        mov     ecx, 40
1:      inc     rbx
        dec     ecx
        jz      finish
        jmp     1b
_start: xor     ebx, ebx
        mov     r12d, 3
        jmp     first
