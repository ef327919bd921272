/*
 * Fuzzes the reader of heapprofile, and its writer with what was read.
 */
#include "tests/fuzz/fuzz_format.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    ef_fuzz_format("heapprofile", data, len);
    return 0;
}
