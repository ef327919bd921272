/*
 * Fuzzes the reader of cpuprofile, also that of its ticks, and its writer with what was read.
 */
#include "tests/fuzz/fuzz_format.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct ef_cpuprofile ticks = {0};
    struct ef_err err = {0};

    ef_fuzz_format("cpuprofile", data, len);
    if (ef_cpuprofile_read_ticks(data, len, &ef_fuzz_limits, &ticks, &err) == EF_OK) {
        ef_fuzz_check_model(ticks.profile);
        for (size_t i = 0; i < ticks.tick_count; i++) {
            ef_fuzz_require(ticks.ticks[i].node < ticks.profile->node_count, "no such node", &err);
            ef_fuzz_require(i == 0 || ticks.ticks[i - 1].time_us <= ticks.ticks[i].time_us,
                            "ticks are not in order", &err);
        }
    }
    ef_cpuprofile_fini(&ticks);
    return 0;
}
