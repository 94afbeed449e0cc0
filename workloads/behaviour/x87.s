# x87: the register stack and its 80-bit numbers live on across branches and calls.
        .include "freestanding.inc"
        .globl  _start
_start:
        finit
        fld1
        fldz
        mov     ecx, 100
1:      fadd    st(0), st(1)            # counts to 100
        call    nothing
        loop    1b
        fld     st(0)
        fmulp   st(1), st(0)            # 10000
        fstp    tbyte ptr [rip + wide]
        lea     rax, [rip + 2f]
        jmp     rax
2:      fld     tbyte ptr [rip + wide]
        fsqrt                           # 100
        fistp   qword ptr [rip + result]
        fcomi   st(0), st(0)
        jp      wrong
        jne     wrong
        fistp   dword ptr [rip + one]
        mov     ebx, [rip + result]
        add     ebx, [rip + one]
        fnstsw  ax
        test    ax, 0x3800              # the stack is empty again
        jnz     wrong
        report  rbx                     # 101 = 0x65
        exit    0
wrong:  exit    1
nothing:
        ret

        .bss
        .balign 16
wide:   .skip   16
result: .skip   8
one:    .skip   8
