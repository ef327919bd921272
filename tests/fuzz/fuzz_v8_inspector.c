/*
 * What an inspector sends: framing of the stream, members of a message, and the profile inside it
 * down to slices. The first byte says where the stream is cut.
 */
#include <stdlib.h>
#include <string.h>

#include "sampler/v8/json_text.h"
#include "sampler/v8/slice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void
slice_profile(struct ef_json_text profile)
{
    struct ef_v8_clock clock = {{INT64_C(1796133968123456789)}, {INT64_C(3000000000)}};
    const struct ef_profile_limits limits = {1000, 1000, 100000};
    struct ef_cpuprofile cpuprofile;
    struct ef_cpu_profile cpu;

    if (profile.at == NULL || ef_cpuprofile_read_ticks((const uint8_t *)profile.at, profile.len,
                                                       &limits, &cpuprofile, NULL) != EF_OK)
        return;
    if (ef_v8_slice(&cpuprofile, &clock, 0, &cpu, NULL) == EF_OK) {
        uint64_t hits = 0;
        for (size_t i = 0; i < cpu.slice_count; i++)
            hits += cpu.slices[i].tick_count;
        if (hits != cpu.hits)
            abort();
        ef_cpu_profile_fini(&cpu);
    }
    ef_cpuprofile_fini(&cpuprofile);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct ef_json_frame frame = {0};
    size_t cut = len > 0 ? data[0] % len : 0, end = 0, from = len > 0;
    struct ef_json_text doc;
    char value[16];
    int64_t id;

    if (len < 2)
        return 0;
    doc = (struct ef_json_text){(const char *)data + 1, len - 1};
    if (cut > from)
        ef_json_frame_feed(&frame, (const char *)data + from, cut - from, &end);
    ef_json_frame_feed(&frame, (const char *)data + cut, len - cut, &end);
    if (end > len)
        abort();
    ef_json_text_int(ef_json_member(doc, "id"), &id);
    ef_json_text_str(ef_json_member(doc, "method"), value, sizeof(value));
    ef_json_text_str(ef_json_member(ef_json_member(doc, "error"), "message"), value, sizeof(value));
    slice_profile(ef_json_member(ef_json_member(doc, "result"), "profile"));
    return 0;
}
