/* What the processor can do that compilers and the system do not always tell. */

/* Whether its tile registers multiply float16, too (AMX-FP16). */
#if defined(__x86_64__)
#include <cpuid.h>
int tile_halves(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 21 & 1);
}
#else
int tile_halves(void) { return 0; }
#endif
