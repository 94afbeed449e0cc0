# The flags live on across every kind of branch: carries travel through jumps, calls, returns and indirect jumps, and all
# status flags can be read back by lahf, seto and pushf.
        .include "freestanding.inc"
        .globl  _start
_start:
        xor     ebx, ebx
        stc
        jmp     1f
1:      adc     rbx, 0                  # + 1: carry over a jump
        stc
        jz      2f                      # conditional, taken or not
2:      adc     rbx, 0                  # + 1
        stc
        call    add_carry               # + 1: into a call
        stc
        call    return_only
        adc     rbx, 0                  # + 1: out of a return
        lea     rax, [rip + 3f]
        stc
        jmp     rax
3:      adc     rbx, 0                  # + 1: over an indirect jump
        lea     rax, [rip + add_carry]
        stc
        call    rax                     # + 1
        stc
        call    qword ptr [rip + pointer]       # + 1
        mov     ecx, 5
        stc
4:      adc     rbx, 0                  # loop and jrcxz leave the flags alone; adc clears carry at once: + 1
        loop    4b
        stc
        jrcxz   5f
5:      adc     rbx, 0                  # + 1

        # A 256-bit addition, one word per block.
        mov     rax, -1
        mov     rdx, -1
        mov     rsi, -1
        mov     rdi, 7
        add     rax, 1
        jmp     6f
6:      adc     rdx, 0
        jmp     7f
7:      adc     rsi, 0
        jmp     8f
8:      adc     rdi, 0                  # 8
        add     rbx, rdi

        # All six status flags, set by hand and read back after branches.
        mov     ah, 0xd5                # SF ZF AF PF CF
        sahf
        jmp     9f
9:      lahf
        movzx   eax, ah
        shl     rax, 8
        add     rbx, rax                # + 0xd700, bit 1 is always set
        mov     al, 127
        add     al, 1                   # overflow
        jmp     1f
1:      seto    cl
        movzx   ecx, cl
        shl     rcx, 16
        add     rbx, rcx                # + 0x10000
        cmp     ebx, ebx                # ZF, PF
        call    return_only
        pushfq
        pop     rax
        and     eax, 0x8d5              # status flags alone: 0x44
        shl     rax, 20
        add     rbx, rax                # + 0x4400000
        std                             # direction survives too
        lea     rax, [rip + 2f]
        jmp     rax
2:      pushfq
        cld
        pop     rax
        and     eax, 0x400
        shl     rax, 20
        add     rbx, rax                # + 0x40000000
        push    0x8c5                   # popf sets them all
        popfq
        jo      3f
        jmp     wrong
3:      jc      4f
        jmp     wrong
4:      js      5f
        jmp     wrong
5:      jp      6f
        jmp     wrong
6:      jz      7f
wrong:  exit    1
7:      pushfq
        pop     rax
        and     eax, 0x100              # the trap flag must be clear
        jnz     wrong
        report  rbx                     # 0x4441d711
        exit    0

add_carry:
        adc     rbx, 0
        ret
return_only:
        ret

        .data
pointer:
        .quad   add_carry
