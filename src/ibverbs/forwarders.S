/* Trampolines to the system's libibverbs: one per row of symbols.inc, in its order.
 *
 * Each jumps through its entry of millrace_forward_targets (system_library.cpp). An entry that is
 * still empty is looked up first, with every argument register put aside, so that one trampoline
 * fits any signature, variadic ones included. */

#if defined(__linux__) && defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif
    .text

    .set row, 0

#if defined(__x86_64__)

.macro trampoline label
    .type \label, @function
    .p2align 4
\label:
    .cfi_startproc
    endbr64
    movq millrace_forward_targets + 8 * row(%rip), %r11
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:  movl $row, %r11d
    jmp look_up_and_jump
    .cfi_endproc
    .size \label, . - \label
    .set row, row + 1
.endm

    .type look_up_and_jump, @function
    .p2align 4
look_up_and_jump:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $192, %rsp                     /* 16-byte aligned: return address, rbp */
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)                 /* al: how many vector registers a variadic call uses */
    movaps %xmm0, 64(%rsp)
    movaps %xmm1, 80(%rsp)
    movaps %xmm2, 96(%rsp)
    movaps %xmm3, 112(%rsp)
    movaps %xmm4, 128(%rsp)
    movaps %xmm5, 144(%rsp)
    movaps %xmm6, 160(%rsp)
    movaps %xmm7, 176(%rsp)
    movl %r11d, %edi
    call millrace_look_up_forward
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movaps 64(%rsp), %xmm0
    movaps 80(%rsp), %xmm1
    movaps 96(%rsp), %xmm2
    movaps 112(%rsp), %xmm3
    movaps 128(%rsp), %xmm4
    movaps 144(%rsp), %xmm5
    movaps 160(%rsp), %xmm6
    movaps 176(%rsp), %xmm7
    movq %rbp, %rsp
    .cfi_def_cfa_register %rsp
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    jmp *%r11
    .cfi_endproc
    .size look_up_and_jump, . - look_up_and_jump

#elif defined(__aarch64__)

.macro trampoline label
    .type \label, %function
    .p2align 4
\label:
    .cfi_startproc
    hint #34                            /* bti c */
    adrp x16, millrace_forward_targets + 8 * row
    ldr x16, [x16, :lo12:millrace_forward_targets + 8 * row]
    cbz x16, 1f
    br x16
1:  mov w17, #row
    b look_up_and_jump
    .cfi_endproc
    .size \label, . - \label
    .set row, row + 1
.endm

    .type look_up_and_jump, %function
    .p2align 4
look_up_and_jump:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl millrace_look_up_forward
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    br x16
    .cfi_endproc
    .size look_up_and_jump, . - look_up_and_jump

#else
#error "the drop-in has trampolines for x86-64 and AArch64 only"
#endif

    .hidden millrace_forward_targets
    .hidden millrace_look_up_forward

.macro forwarded name
    .globl \name
    trampoline \name
.endm

.macro in_private_version name, at, number
    .globl private_\number\()_\name
    .set private_\number\()_\name, private_\name
    .symver private_\number\()_\name, \name\at\()IBVERBS_PRIVATE_\number
.endm

.macro private name
    .globl private_\name
    trampoline private_\name
    in_private_version \name, @@, 34
    in_private_version \name, @, 57
    in_private_version \name, @, 59
    in_private_version \name, @, 64
    in_private_version \name, @, 65
.endm

.macro routed name
    .globl system_\name
    .hidden system_\name
    trampoline system_\name
.endm

.macro old name
    .globl old_\name
    trampoline old_\name
    .symver old_\name, \name@IBVERBS_1.0
.endm

#define ROUTED(name, version, answer) routed name
#define FORWARDED(name, version, answer) forwarded name
#define PRIVATE(name, answer) private name
#define OLD(name, answer) old name
#include "symbols.inc"
