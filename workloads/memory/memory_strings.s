# String instructions: every one of every width, alone and repeated, forwards and backwards, with overlaps, with counts of
# none, one and many, ended by a comparison or by the count, with addresses of 32 bits.
        .include "memory.inc"

        .macro  ready source, destination, count
        lea     rsi, [rip + data + \source]
        lea     rdi, [rip + data + \destination]
        mov     ecx, \count
        .endm
        .macro  keep_all
        keep_flags
        keep    rsi
        keep    rdi
        keep    rcx
        keep    rax
        .endm

_start:
        mov     rax, 0x8182838485868788
        .macro  directions
        .irp    size, b, w, d, q
        ready   0x203, 0x405, 17
        movs\size
        keep_all
        stos\size
        keep_all
        lods\size
        keep_all
        scas\size
        keep_all
        cmps\size
        keep_all
        .irp    count, 0, 1, 2, 17
        ready   0x203, 0x445, \count
        rep movs\size
        keep_all
        ready   0x210, 0x211, \count    # overlapping
        rep movs\size
        keep_all
        ready   0x251, 0x250, \count
        rep movs\size
        keep_all
        ready   0x280, 0x280, \count
        rep stos\size
        keep_all
        ready   0x300, 0x400, \count
        rep lods\size
        keep_all
        ready   0x300, 0x380, \count    # differs at once
        repe cmps\size
        keep_all
        ready   0x300, 0x380, \count    # never the same
        repne cmps\size
        keep_all
        ready   0x280, 0x290, \count
        repe cmps\size
        keep_all
        ready   0x280, 0x280, \count
        mov     rax, [rdi]
        repe scas\size
        keep_all
        ready   0x310, 0x500, \count
        mov     rax, [rdi + 8]          # found, or not
        repne scas\size
        keep_all
        .endr
        .endr
        .endm
        cld
        directions
        std
        directions
        cld

# The same one again and again; a count that needs more than a byte; prefixes without meaning.
        mov     edx, 5
1:      lea     rdi, [rip + data + 0x600]
        mov     ecx, edx
        rep stosb
        dec     edx
        jnz     1b
        ready   0x100, 0x900, 300
        rep movsb
        ready   0x100, 0x900, 90
        rep stosd
        ready   0x100, 0x900, 3
        repne movsb                     # as rep
        ready   0x100, 0x901, 3
        repne stosw
        ready   0x100, 0x902, 3
        repne lodsb
        keep_all

# Addresses of 32 bits, count in ecx.
        mov     rax, 0x1111111100000000
        ready   0x120, 0xa00, 4
        or      rsi, rax
        or      rdi, rax
        or      rcx, rax
        .byte   0x67
        rep movsd
        keep_all
        mov     rcx, rax
        .byte   0x67
        rep stosb                       # no count
        keep_all
        mov     rdi, rax
        mov     rsi, rax
        lea     rcx, [rip + data]
        or      rsi, rcx
        or      rdi, rcx
        .byte   0x67
        cmpsb
        .byte   0x67
        lodsq
        .byte   0x67
        stosw
        keep_all

# rsi and rdi from other instructions, in between.
        ready   0x140, 0xb00, 5
1:      lodsb
        xor     al, 0x5a
        stosb
        loop    1b
        finish
