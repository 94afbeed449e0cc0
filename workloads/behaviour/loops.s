# Loops of every kind: counted by dec/jnz, nested, loop, loope, loopne, and the jumps on rcx and ecx.
        .include "freestanding.inc"
        .globl  _start
_start:
        xor     ebx, ebx
        mov     ecx, 1000
1:      add     rbx, rcx
        dec     ecx
        jnz     1b                      # rbx = 500500

        mov     r12d, 20
2:      mov     r13d, 30
3:      inc     rbx
        sub     r13d, 1
        jg      3b
        dec     r12d
        jne     2b                      # + 600

        mov     ecx, 50
4:      add     rbx, 2
        loop    4b                      # + 100

        mov     ecx, 10
5:      inc     rbx
        cmp     ecx, 10                 # equal the first time only
        loope   5b                      # + 2

        mov     ecx, 10
6:      inc     rbx
        cmp     ecx, 4
        loopne  6b                      # + 7, leaves with equality

        mov     ecx, 3
7:      jrcxz   8f
        inc     rbx
        dec     rcx
        jmp     7b                      # + 3
8:      mov     rcx, 0x100000000        # zero in its lower half
        jecxz   9f
        add     rbx, 1000000            # not executed
9:      jrcxz   1f                      # not taken
        inc     rbx                     # + 1
1:      loop    2f                      # taken: 0xffffffff is left
        add     rbx, 1000000            # not executed
2:      report  rbx                     # 501213 = 0x7a5dd
        exit    0
