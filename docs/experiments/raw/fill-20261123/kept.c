// Trial: blocks of 1033 to 4096 bytes are kept in lists of the thread, as glibc keeps smaller ones.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <malloc.h>
extern void *__libc_malloc(size_t); extern void __libc_free(void *);
enum { STEP = 512, CLASSES = 8, KEPT = 64 };
static __thread struct { void *first; unsigned count; } lists[CLASSES + 1] __attribute__((tls_model("initial-exec")));
void *malloc(size_t n) {
    if (n <= 1032 || n > STEP * CLASSES) return __libc_malloc(n);
    size_t c = (n + STEP - 1) / STEP;
    void *p = lists[c].first;
    if (!p) return __libc_malloc(c * STEP);
    lists[c].first = *(void **)p; lists[c].count--;
    return p;
}
void free(void *p) {
    if (!p) return;
    size_t n = ((size_t *)p)[-1] & ~7ul; // chunk size; usable is n - 8
    size_t usable = n - 8;
    if (((size_t *)p)[-1] & 2 || usable <= 1032 || usable > STEP * CLASSES + 16) { __libc_free(p); return; }
    size_t c = usable / STEP;
    if (c > CLASSES || c < 2 || lists[c].count >= KEPT) { __libc_free(p); return; }
    *(void **)p = lists[c].first; lists[c].first = p; lists[c].count++;
}
