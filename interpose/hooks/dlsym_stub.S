// SPDX-License-Identifier: Apache-2.0
/* void* dlsym(void* handle, const char* symbol): see dlsym.cpp. The last step is a jump, not a call, so that glibc sees
   the caller's own return address. */
#if defined(__x86_64__)
        .text
        .globl  dlsym
        .type   dlsym, @function
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rdx          /* who calls */
        call    stalloc_intercept_dlsym
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        jz      1f
        ret
1:      jmp     *stalloc_real_dlsym(%rip)
        .cfi_endproc
        .size   dlsym, .-dlsym
#elif defined(__aarch64__)
        .text
        .globl  dlsym
        .type   dlsym, %function
dlsym:
        .cfi_startproc
        stp     x29, x30, [sp, #-32]!
        .cfi_adjust_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        stp     x0, x1, [sp, #16]
        mov     x2, x30                 /* who calls */
        bl      stalloc_intercept_dlsym
        cbnz    x1, 1f
        .cfi_remember_state
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        adrp    x16, stalloc_real_dlsym
        ldr     x16, [x16, #:lo12:stalloc_real_dlsym]
        br      x16
        .cfi_restore_state
1:      ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        ret
        .cfi_endproc
        .size   dlsym, .-dlsym
#else
#error "dlsym_stub.S knows x86-64 and aarch64"
#endif
        .section .note.GNU-stack, "", %progbits
