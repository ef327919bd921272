/*
 * Fuzzes the reader of pprof, and its writer with what was read.
 */
#include "tests/fuzz/fuzz_format.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    ef_fuzz_format("pprof", data, len);
    return 0;
}
