/*
 * Decides how a target's status is copied. Runs in whatever thread holds the publisher's lock.
 */
#include "sampler/lib/targets.h"

#include "proto/wire/check.h"
#include "sampler/lib/batch.h"

/* 1024 targets of at most 8 kB (9 names, 32 label texts of 128 bytes, 3 texts of 256). */
#define ARENA_BYTES_MAX (16u << 20)

void
ef_targets_init(struct ef_targets *targets)
{
    targets->count = 0;
    ef_wire_arena_init(&targets->arena);
}

void
ef_targets_fini(struct ef_targets *targets)
{
    targets->count = 0;
    ef_wire_arena_fini(&targets->arena);
}

static bool
is_good(Everflame__V1__TargetStatus *target)
{
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;

    request.n_targets = 1;
    request.targets = &target;
    return ef_wire_check(EF_WIRE_SYNC_REQUEST, &request.base, false, NULL) == EF_OK;
}

static Everflame__V1__TargetStatus *
copy_target(struct ef_wire_arena *arena, const struct ef_target_status *from)
{
    Everflame__V1__TargetStatus *copy =
        arena->allocator.alloc(arena->allocator.allocator_data, sizeof(*copy));

    if (copy == NULL || from->source.label_count > EF_WIRE_LABELS_MAX)
        return NULL;
    everflame__v1__target_status__init(copy);
    copy->source = ef_batch_copy_source(arena, &from->source);
    copy->inspector = ef_batch_copy_text(arena, from->inspector, EF_TARGET_TEXT_BYTES_MAX);
    copy->state = ef_batch_copy_text(arena, from->state, EF_TARGET_TEXT_BYTES_MAX);
    copy->message = ef_batch_copy_text(arena, from->message, EF_TARGET_TEXT_BYTES_MAX);
    if (copy->source == NULL || copy->inspector == NULL || copy->state == NULL ||
        copy->message == NULL)
        return NULL;
    copy->pid = from->pid;
    copy->cpu_ratio = from->cpu_ratio;
    copy->pause_ms_max = from->pause_ms_max;
    copy->pause_ratio = from->pause_ratio;
    copy->samples = from->samples;
    copy->samples_starved = from->samples_starved;
    copy->sampled_until_ns = from->sampled_until_ns;
    copy->process_cpu_ratio = from->process_cpu_ratio;
    return copy;
}

void
ef_targets_set(struct ef_targets *targets, const struct ef_target_status *list, size_t count)
{
    ef_wire_arena_reset(&targets->arena, ARENA_BYTES_MAX);
    targets->count = 0;
    for (size_t i = 0; i < count && targets->count < EF_TARGETS_MAX; i++) {
        Everflame__V1__TargetStatus *copy = copy_target(&targets->arena, &list[i]);
        if (copy != NULL && is_good(copy))
            targets->list[targets->count++] = copy;
    }
}
