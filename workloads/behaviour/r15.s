# r15 in every role: data, base, index, stack pointer's partner, call and jump target, half and byte register.
        .include "freestanding.inc"
        .globl  _start
_start:
        mov     r15, 0x1234
        lea     rbx, [r15 + r15 * 2]    # 0x369c
        lea     r15, [rip + words]
        add     rbx, [r15]              # + 1
        add     rbx, [r15 + 8]          # + 20
        mov     r15d, 2                 # clears the upper half
        lea     rdx, [rip + words]
        add     rbx, [rdx + r15 * 8]    # + 300
        push    r15
        mov     r15, rsp
        add     rbx, [r15]              # + 2
        pop     r15
        xchg    r15, rbx
        inc     r15
        xchg    r15, rbx                # + 1
        mov     ecx, 10
1:      add     r15, rcx
        jc      wrong
        loop    1b                      # r15 = 2 + 55
        add     rbx, r15                # + 57
        lea     r15, [rip + add_five]
        call    r15                     # + 5, and r15 comes back changed
        cmp     r15, 77
        jne     wrong
        lea     r15, [rip + pointers]
        call    qword ptr [r15]         # + 5
        lea     r15, [rip + 2f]
        jmp     r15
        jmp     wrong
2:      mov     r15, 0xff00
        mov     r15b, 0x11
        cmp     r15w, 0xff11
        jne     wrong
        xor     r15d, r15d
        cmovz   r15, rbx
        bt      r15, 0
        adc     r15, 0
        lea     rsi, [rip + words]
        push    qword ptr [rsi]
        pop     r15
        add     rbx, r15                # + 1
        mov     r15, 3
        shl     r15, 4
        imul    r15, r15, 2             # 96
        add     rbx, r15
        mov     r15, 0x7777
        mov     eax, 39                 # getpid leaves r15 alone
        syscall
        cmp     r15, 0x7777
        jne     wrong
        report  rbx                     # 0x369c + 1+20+300+2+1+57+5+5+1+96 = 14468 = 0x3884
        exit    0
wrong:  exit    1

add_five:
        add     rbx, 5
        mov     r15, 77
        ret

        .data
words:  .quad   1, 20, 300
pointers:
        .quad   add_five
