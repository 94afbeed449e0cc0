# Calls and returns of every kind: near, through registers and memory, relative to the stack pointer, and returns
# that take arguments off the stack.
        .include "freestanding.inc"
        .globl  _start
_start:
        xor     ebx, ebx
        call    add_one                 # + 1
        lea     rcx, [rip + add_one]
        call    rcx                     # + 1: the register that a translator likes for itself
        lea     rdx, [rip + add_ten]
        call    rdx                     # + 10
        lea     rax, [rip + add_ten]
        call    rax                     # + 10
        lea     r11, [rip + add_one]
        call    r11                     # + 1
        call    qword ptr [rip + pointer_to_add_ten]    # + 10

        lea     rax, [rip + add_one]    # the operand's address is formed before the return address is pushed
        push    rax
        lea     rax, [rip + add_ten]
        push    rax
        call    qword ptr [rsp]         # + 10
        call    qword ptr [rsp + 8]     # + 1
        mov     ecx, 1
        call    qword ptr [rsp + rcx * 8]       # + 1
        add     rsp, 16

        push    100
        push    200
        call    add_arguments           # + 300, takes both away
        mov     r12, rsp
        push    1
        call    add_and_drop
        cmp     rsp, r12
        jne     wrong

        lea     rax, [rip + back]       # a return without its call
        push    rax
        ret
        inc     rbx                     # not executed
back:   call    here                    # a call without its return
here:   pop     rax
        lea     rdx, [rip + here]
        cmp     rax, rdx
        jne     wrong
        mov     rsp, r12
        lea     rsp, [rsp - 8]
        lea     rax, [rip + after]
        mov     [rsp], rax
        jmp     add_ten                 # a call by hand: + 10
after:  report  rbx                     # 1+1+10+10+1+10+10+1+1+300+1+10 = 356 = 0x164
        exit    0
wrong:  exit    1

add_one:
        inc     rbx
        ret
add_ten:
        add     rbx, 9
        call    add_one
        rep ret
add_arguments:
        add     rbx, [rsp + 8]
        add     rbx, [rsp + 16]
        ret     16
add_and_drop:
        add     rbx, [rsp + 8]
        ret     8

        .data
pointer_to_add_ten:
        .quad   add_ten
