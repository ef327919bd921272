/*
 * Decides the content hash of every node of a profile. Pure; any thread.
 */
#include "proto/model/profile.h"

#include <stdlib.h>
#include <string.h>

#include "proto/model/hash.h"

static uint64_t
frame_function_hash(const struct ef_profile *profile, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &profile->frames[frame_id];
    const struct ef_profile_function *function = &profile->functions[frame->function];
    char buf[EF_PROFILE_FRAME_NAME_MAX];
    const char *name, *file;

    if (frame->function != 0) {
        name = ef_profile_string(profile, function->name);
        file = ef_profile_string(profile, function->file);
        return ef_function_hash(name, strlen(name), file, strlen(file), function->start_line);
    }
    name = ef_profile_frame_name(profile, frame_id, buf, sizeof(buf));
    file = ef_profile_string(profile,
                             frame->mapping != 0 ? profile->mappings[frame->mapping].file : 0);
    return ef_function_hash(name, strlen(name), file, strlen(file), 0);
}

ef_rc
ef_profile_hashes(const struct ef_profile *profile, uint64_t **ret_hashes, struct ef_err *err)
{
    uint64_t *hashes = calloc(profile->node_count > 0 ? profile->node_count : 1, sizeof(*hashes));
    uint64_t *functions = calloc((size_t)profile->frame_count + 1, sizeof(*functions));

    if (hashes == NULL || functions == NULL) {
        free(hashes);
        free(functions);
        return ef_err_set(err, EF_ENOMEM, "no memory for the hashes of %u stacks",
                          profile->node_count);
    }
    for (uint32_t node = 1; node < profile->node_count; node++) {
        const struct ef_profile_node *at = &profile->nodes[node];
        if (functions[at->frame] == 0)
            functions[at->frame] = frame_function_hash(profile, at->frame);
        hashes[node] = ef_stack_hash(hashes[at->parent], functions[at->frame],
                                     profile->frames[at->frame].line);
    }
    free(functions);
    *ret_hashes = hashes;
    return EF_OK;
}
