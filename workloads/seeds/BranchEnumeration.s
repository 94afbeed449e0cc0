# BranchEnumeration, after Myers 2014, section 4.1.3 (Figures 4.7 to 4.10): every branch instruction of x86-64 once.
#
# Written anew from the description. The conditional ones are not taken; part 2 ends each loop in its first round. Other
# mnemonics (ja, jae, je, jg ...) are names of the same instructions. The section is placed by the linker so that the
# branches have the addresses of the figures; the length of every instruction matters for that.
        .intel_syntax noprefix

        .section .rodata
.LC0:   .string "BranchEnumeration"

        .section seed_text, "ax", @progbits
        .globl  main
        .type   main, @function
main:
        .cfi_startproc
        push    rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        mov     rbp, rsp
        .cfi_def_cfa_register 6

#Part 1
#unsigned conditional direct branches
#all branches will not be taken
#branch if strictly above
#Taken when CF and ZF are both zero
        mov     rax, 1
        cmp     rax, 2
        jnbe    exit1                   # 0x4004d3
#branch if above or equal
#Taken when CF is 0
        jnb     exit1                   # 0x4004d9
#branch if strictly below
#Taken when CF is 1
        mov     rax, 2
        cmp     rax, 1
        jb      exit1
#branch if below or equal
#Taken when CF or ZF is 1
        mov     rax, 2
        cmp     rax, 1
        jbe     exit1
#branch if equal
#Taken when ZF is 1
        cmp     rax, 1
        jz      exit1
#branch if not equal
#Taken when ZF is 0
        cmp     rax, 2
        jnz     exit1

#signed conditional direct branches
#branch if strictly greater
#Taken when ZF is 0 and SF equals OF
        mov     rax, -1
        cmp     rax, 1
        jnle    exit1
#branch if greater or equal
#Taken when SF equals OF
        cmp     rax, 1
        jnl     exit1
#branch if strictly less
#Taken when SF does not equal OF
        mov     rax, 1
        cmp     rax, -1
        jl      exit1
#branch if less or equal
#Taken when ZF is 1 or SF does not equal OF
        cmp     rax, -1
        jle     exit1

#conditional direct branches on a single flag
#branch if negative
#Taken when SF is 1
        test    rax, rax
        js      exit1
#branch if parity is even
#Taken when PF is 1
        test    rax, rax
        jp      exit1
#branch if overflow
#Taken when OF is 1
        jo      exit1
#branch if not negative
#Taken when SF is 0
        mov     rax, -1
        test    rax, rax
        jns     exit1
#branch if parity is odd
#Taken when PF is 0
        test    rax, rax
        jnp     exit1
#branch if no overflow
#Taken when OF is 0
        mov     eax, 127
        add     al, 1
        jno     exit1
#branch if ecx is zero
        mov     rcx, 1
        jecxz   exit1

#Part 2
#More conditional branch instructions
#Loop family
        mov     rcx, 1
loop1:
        loop    loop1                   # 0x400572
        mov     rcx, 1
loop2:
        loope   loop2                   # 0x40057b
        mov     rcx, 1
loop3:
        loopne  loop3
#branch if rcx is zero
        mov     rcx, 1
        jrcxz   exit1

#Part 3
#Unconditional Direct jump
        jmp     Label1                  # 0x40058f
#Not Executed
        test    rax, rax

Label1:
#setup puts
        mov     edi, OFFSET FLAT:.LC0
#unconditional direct branch - call
        call    puts                    # 0x400599, to 0x4003b8
exit1:
        leave
        .cfi_def_cfa 7, 8
#unconditional indirect branch
        ret                             # 0x40059f
        .cfi_endproc
        .size   main, . - main
        .section .note.GNU-stack, "", @progbits
