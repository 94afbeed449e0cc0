# String instructions: rep movs, stos, lods, scas and cmps of several sizes, with a count of zero or one, backwards, two
# at the same address in a row (by a loop), and without rep.
        .include "freestanding.inc"
        .globl  _start
_start:
        cld
        lea     rdi, [rip + buffer]
        mov     eax, 0x5a
        mov     ecx, 300
        rep stosb
        lea     rsi, [rip + buffer]
        lea     rdi, [rip + buffer + 512]
        mov     ecx, 40
        rep movsq                       # 320 bytes, the last 20 are zero
        mov     ecx, 0
        rep movsb                       # nothing
        rep stosq                       # nothing
        repne scasb                     # nothing
        mov     ecx, 1
        rep movsb                       # one

        lea     rdi, [rip + buffer + 512]
        xor     eax, eax
        mov     ecx, 1000
        repne scasb                     # finds the zero at 300
        mov     rbx, 1000
        sub     rbx, rcx                # 301

        lea     rsi, [rip + buffer]
        lea     rdi, [rip + buffer + 512]
        mov     byte ptr [rdi + 77], 1
        mov     ecx, 300
        repe cmpsb                      # differs at 77
        mov     rax, 300
        sub     rax, rcx
        add     rbx, rax                # + 78

        std                             # backwards, overlapping
        lea     rsi, [rip + buffer + 512 + 99]
        lea     rdi, [rip + buffer + 512 + 109]
        mov     ecx, 100
        rep movsb
        cld
        cmp     byte ptr [rip + buffer + 512 + 87], 1
        jne     wrong

        mov     edx, 5                  # the same rep again and again
1:      lea     rdi, [rip + buffer]
        mov     ecx, edx
        rep stosd
        dec     edx
        jnz     1b

        # Between two rounds of rep stosw there is little else.
        lea     rdi, [rip + buffer]
        mov     edx, 3
2:      mov     ecx, edx
        rep stosw
        add     ecx, edx
        dec     edx
        loop    2b
        add     rbx, rdx                # + 0

        lea     rsi, [rip + buffer + 512]
        mov     ecx, 9
        rep lodsb                       # loads, keeps the last
        movzx   eax, al
        add     rbx, rax                # + 0x5a
        lodsw
        stosw
        movsb
        scasb
        cmpsb
        report  rbx                     # 301 + 78 + 90 = 469 = 0x1d5
        exit    0
wrong:  exit    1

        .bss
buffer: .skip   2048
