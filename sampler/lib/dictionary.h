/*
 * What each worker version's stack and function hashes mean, so that definitions are sent once and
 * can be sent again when the collector asks.
 *
 * Invariants: what is in the dictionary has been put into a batch of this epoch, together with its
 * callers and functions. Stacks, text and versions are bounded; when full, versions unused for ten
 * minutes are forgotten first, then new stacks become the reserved stack "(limit reached)" and are
 * counted. New entries are listed as pending per version until the batch takes them. Not
 * thread-safe: the publisher's lock guards it.
 */
#ifndef SAMPLER_LIB_DICTIONARY_H
#define SAMPLER_LIB_DICTIONARY_H

#include "proto/base/map.h"
#include "proto/base/time.h"
#include "proto/model/profile.h"

#define EF_DICTIONARY_VERSIONS_MAX 4096u

struct ef_dictionary_stack {
    uint64_t hash, parent, function;
    uint32_t line;
    int64_t answered_ns; /* monotonic; 0 = never asked for */
};

struct ef_dictionary_function {
    uint64_t hash;
    char *name, *file; /* one allocation, name first */
    uint32_t line;
    int64_t answered_ns;
};

/* Indexes that wait for a batch. */
struct ef_dictionary_pending {
    uint32_t *index;
    size_t count, cap;
};

struct ef_dictionary_version {
    char *account, *worker, *version;      /* one allocation, account first */
    struct ef_map stack_map, function_map; /* hash -> index */
    struct ef_dictionary_stack *stacks;
    size_t stack_count, stack_cap;
    struct ef_dictionary_function *functions;
    size_t function_count, function_cap;
    struct ef_dictionary_pending pending_stacks, pending_functions;
    uint64_t text_bytes;
    ef_mono_ns used;
};

struct ef_dictionary {
    struct ef_dictionary_version **versions;
    size_t version_count;
    size_t stack_count, stacks_max;
    uint64_t text_bytes, text_bytes_max;
    uint64_t stacks_over_limit; /* samples' stacks that became "(limit reached)" */
    /* Called after each pending entry with its size on the wire; may take what is pending. */
    void (*added)(void *arg, size_t bytes);
    void *arg;
};

void ef_dictionary_init(struct ef_dictionary *dictionary, size_t stacks_max,
                        void (*added)(void *arg, size_t bytes), void *arg);
void ef_dictionary_fini(struct ef_dictionary *dictionary);

/* Finds or makes the version and counts as a use. Stays valid until the next call of this function.
 */
EF_MUST_USE ef_rc ef_dictionary_version(struct ef_dictionary *dictionary, const char *account,
                                        const char *worker, const char *version, ef_mono_ns now,
                                        struct ef_dictionary_version **ret_version,
                                        struct ef_err *err);
/* NULL when not known. */
struct ef_dictionary_version *ef_dictionary_find(const struct ef_dictionary *dictionary,
                                                 const char *account, const char *worker,
                                                 const char *version);
/*
 * Makes sure that the node's stack is defined and gives the hash to publish: hashes[node], or that
 * of the reserved stack. EF_EINVAL when the hash does not belong to the node.
 */
EF_MUST_USE ef_rc ef_dictionary_define(struct ef_dictionary *dictionary,
                                       struct ef_dictionary_version *version,
                                       const struct ef_profile *profile, const uint64_t *hashes,
                                       uint32_t node, uint64_t *ret_hash, struct ef_err *err);
/*
 * Makes a stack pending again, with all its callers and functions, except what was asked for less
 * than five seconds ago (it is on its way). Unknown hashes do nothing.
 */
void ef_dictionary_want(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
                        uint64_t hash, ef_mono_ns now);

#endif
