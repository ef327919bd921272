/*
 * The list of samplers, from samplers.def. Any thread.
 */
#include "sampler/sampler.h"

#include <string.h>

#define X(runtime, ops) extern const struct ef_sampler_ops ops;
#include "sampler/samplers.def"
#undef X

const struct ef_sampler_ops *
ef_sampler_find(const char *runtime)
{
    static const struct {
        const char *runtime;
        const struct ef_sampler_ops *ops;
    } samplers[] = {
#define X(runtime, ops) {runtime, &ops},
#include "sampler/samplers.def"
#undef X
    };

    for (size_t i = 0; i < EF_COUNT_OF(samplers); i++)
        if (strcmp(samplers[i].runtime, runtime) == 0)
            return samplers[i].ops;
    return NULL;
}
