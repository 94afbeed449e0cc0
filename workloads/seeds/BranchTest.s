# BranchTest, after Myers 2014, section 4.1.3 (Figures 4.11 and 4.12): branches that are taken, a loop, a direct and an
# indirect call.
#
# Written anew from the description; what the figure leaves out (the function `test`, the way into Label1) is ours. The
# section is placed by the linker so that the branches have the addresses of the figure.
        .intel_syntax noprefix

        .section .rodata
.LC0:   .string "BranchTest"
.LC1:   .string "test"

        .section seed_text, "ax", @progbits
        .type   test, @function
test:                                   # 0x4004c4
        .cfi_startproc
        push    rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        mov     rbp, rsp
        .cfi_def_cfa_register 6
        mov     edi, OFFSET FLAT:.LC1
        call    puts
        leave
        .cfi_def_cfa 7, 8
        ret
        .cfi_endproc
        .size   test, . - test

        .globl  main
        .type   main, @function
main:
        .cfi_startproc
        push    rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        mov     rbp, rsp
        .cfi_def_cfa_register 6
        mov     rax, 1
        jmp     Label1
Label1:
        mov     rax, 2
        cmp     rax, 1
        jnbe    Label2                  # 0x4004ec
        test    rax, rax
Label2:
        cmp     rax, 2
        jz      Label3                  # 0x4004f5
Label3:
        mov     rcx, 5
Label4:
        loop    Label4                  # 0x4004fe

        #setup puts
        mov     edi, OFFSET FLAT:.LC0

        #unconditional direct branch - call
        call    puts

        #unconditional indirect branch - call
        mov     rax, OFFSET FLAT:test
        call    rax                     # 0x400511
        leave
        .cfi_def_cfa 7, 8

        #indirect taken branch
        ret
        .cfi_endproc
        .size   main, . - main
        .section .note.GNU-stack, "", @progbits
