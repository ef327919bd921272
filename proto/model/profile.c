/*
 * Decides how a profile lies in memory: parallel arrays, and one hash table per kind of thing that
 * is stored once. Must not know any file format, the clock or the network. One thread per profile;
 * several readers.
 */
#include "proto/model/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"
#include "proto/base/map.h"
#include "proto/base/utf8.h"

#define BLOCK_BYTES ((size_t)64 << 10) /* of string memory; chosen: few blocks, little waste */
#define STRING_OVERHEAD_BYTES 16u      /* pointer, length and table slot; counted in the limit */
#define COUNT_MAX (UINT32_C(1) << 30)  /* so that doubling a count never wraps */

const struct ef_profile_limits ef_profile_limits_default = {
    .nodes_max = UINT32_C(4) << 20,
    .functions_max = UINT32_C(1) << 20,
    .string_bytes_max = (size_t)256 << 20,
};

/* Keys are compared as bytes, so there must be no padding in them. */
_Static_assert(sizeof(struct ef_profile_mapping) == 32, "padding in a hashed struct");
_Static_assert(sizeof(struct ef_profile_function) == 16, "padding in a hashed struct");
_Static_assert(sizeof(struct ef_profile_frame) == 24, "padding in a hashed struct");
_Static_assert(sizeof(struct ef_profile_node) == 8, "padding in a hashed struct");

/* A slot holds the upper half of the hash and the id; 0 = free, because id 0 is never in a table.
 */
struct table {
    uint64_t *slots;
    uint32_t slot_count; /* power of two or 0 */
    uint32_t count;
};

struct block {
    struct block *next;
    size_t used, cap;
    char bytes[];
};

struct text {
    const char *bytes;
    uint32_t len;
};

struct ef_profile_inner {
    struct ef_profile_limits limits;
    struct table strings, mappings, functions, frames, nodes;
    struct text *texts;
    struct block *blocks;
    size_t string_bytes; /* as counted against the limit */
    size_t block_bytes;  /* as allocated */
    uint32_t string_count, string_cap;
    uint32_t mapping_cap, function_cap, frame_cap, node_cap;
};

static ef_rc
no_memory(struct ef_err *err)
{
    return ef_err_set(err, EF_ENOMEM, "out of memory for a profile");
}

static uint64_t
slot_of(uint64_t hash, uint32_t id)
{
    return (hash & UINT64_C(0xffffffff00000000)) | id;
}

static void
table_place(struct table *table, uint64_t slot)
{
    uint32_t i = (uint32_t)(slot >> 32) & (table->slot_count - 1);

    while (table->slots[i] != 0)
        i = (i + 1) & (table->slot_count - 1);
    table->slots[i] = slot;
}

/* Makes room for one more entry; at most 3/4 full. */
static bool
table_reserve(struct table *table)
{
    struct table bigger = *table;

    if (table->count < table->slot_count - table->slot_count / 4)
        return true;
    bigger.slot_count = table->slot_count == 0 ? 64 : table->slot_count * 2;
    bigger.slots = calloc(bigger.slot_count, sizeof(*bigger.slots));
    if (bigger.slots == NULL)
        return false;
    for (uint32_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i] != 0)
            table_place(&bigger, table->slots[i]);
    }
    free(table->slots);
    *table = bigger;
    return true;
}

/* Finds an item of an array by its bytes; 0 = not there. Inlined, so that `size` is a constant. */
static inline uint32_t
table_find(const struct table *table, uint64_t hash, const void *items, size_t size,
           const void *key)
{
    uint32_t i = (uint32_t)(hash >> 32) & (table->slot_count - 1);

    if (table->slot_count == 0)
        return 0;
    for (; table->slots[i] != 0; i = (i + 1) & (table->slot_count - 1)) {
        uint32_t id = (uint32_t)table->slots[i];
        if (table->slots[i] == slot_of(hash, id) &&
            memcmp((const char *)items + (size_t)id * size, key, size) == 0)
            return id;
    }
    return 0;
}

static bool
grow_array(void *array_ptr, uint32_t cap, size_t size)
{
    void **array = array_ptr;
    size_t bytes;
    void *bigger;

    if (!ef_mul_size(cap, size, &bytes))
        return false;
    bigger = realloc(*array, bytes);
    if (bigger == NULL)
        return false;
    *array = bigger;
    return true;
}

static uint32_t
next_cap(uint32_t cap)
{
    return cap < 16 ? 16 : cap * 2;
}

/*
 * Finds or appends one item of a hash-consed array. `max` counts the items besides item 0. Nothing
 * has changed after a failure.
 */
static inline ef_rc
intern(struct table *table, void *array_ptr, uint32_t *count, uint32_t *cap, uint32_t max,
       size_t size, const void *key, const char *what, uint32_t *ret_id, struct ef_err *err)
{
    void **array = array_ptr;
    uint64_t hash = ef_hash(key, size);
    uint32_t id = table_find(table, hash, *array, size, key);

    if (id != 0) {
        *ret_id = id;
        return EF_OK;
    }
    if (*count > max)
        return ef_err_set(err, EF_ELIMIT, "the profile has more than %" PRIu32 " %s", max, what);
    if (*count >= *cap) {
        if (!grow_array(array_ptr, next_cap(*cap), size))
            return no_memory(err);
        *cap = next_cap(*cap);
    }
    if (!table_reserve(table))
        return no_memory(err);
    id = (*count)++;
    memcpy((char *)*array + (size_t)id * size, key, size);
    table_place(table, slot_of(hash, id));
    table->count++;
    *ret_id = id;
    return EF_OK;
}

static uint32_t
bounded(uint32_t limit)
{
    return limit < COUNT_MAX ? limit : COUNT_MAX;
}

ef_rc
ef_profile_open(const struct ef_profile_limits *limits, struct ef_profile **ret_profile,
                struct ef_err *err)
{
    struct ef_profile *profile = calloc(1, sizeof(*profile));
    struct ef_profile_inner *inner = calloc(1, sizeof(*inner));

    if (profile == NULL || inner == NULL) {
        free(profile);
        free(inner);
        return no_memory(err);
    }
    profile->inner = inner;
    inner->limits = *limits;
    inner->limits.nodes_max = bounded(limits->nodes_max);
    inner->limits.functions_max = bounded(limits->functions_max);
    inner->string_cap = inner->mapping_cap = inner->function_cap = 16;
    inner->frame_cap = inner->node_cap = 16;
    inner->texts = calloc(16, sizeof(*inner->texts));
    profile->mappings = calloc(16, sizeof(*profile->mappings));
    profile->functions = calloc(16, sizeof(*profile->functions));
    profile->frames = calloc(16, sizeof(*profile->frames));
    profile->nodes = calloc(16, sizeof(*profile->nodes));
    if (inner->texts == NULL || profile->mappings == NULL || profile->functions == NULL ||
        profile->frames == NULL || profile->nodes == NULL) {
        ef_profile_free(profile);
        return no_memory(err);
    }
    inner->texts[0] = (struct text){"", 0};
    inner->string_count = profile->mapping_count = profile->function_count = 1;
    profile->frame_count = profile->node_count = 1;
    *ret_profile = profile;
    return EF_OK;
}

void
ef_profile_free(struct ef_profile *profile)
{
    struct ef_profile_inner *inner;

    if (profile == NULL)
        return;
    inner = profile->inner;
    free(inner->strings.slots);
    free(inner->mappings.slots);
    free(inner->functions.slots);
    free(inner->frames.slots);
    free(inner->nodes.slots);
    free(inner->texts);
    while (inner->blocks != NULL) {
        struct block *next = inner->blocks->next;
        free(inner->blocks);
        inner->blocks = next;
    }
    free(inner);
    free(profile->nodes);
    free(profile->values);
    free(profile->functions);
    free(profile->frames);
    free(profile->mappings);
    free(profile);
}

static size_t
table_bytes(const struct table *table)
{
    return table->slot_count * sizeof(*table->slots);
}

size_t
ef_profile_bytes(const struct ef_profile *profile)
{
    const struct ef_profile_inner *inner = profile->inner;

    return sizeof(*profile) + sizeof(*inner) + inner->block_bytes + table_bytes(&inner->strings) +
           table_bytes(&inner->mappings) + table_bytes(&inner->functions) +
           table_bytes(&inner->frames) + table_bytes(&inner->nodes) +
           inner->string_cap * sizeof(*inner->texts) +
           inner->mapping_cap * sizeof(*profile->mappings) +
           inner->function_cap * sizeof(*profile->functions) +
           inner->frame_cap * sizeof(*profile->frames) +
           inner->node_cap *
               (sizeof(*profile->nodes) + profile->type_count * sizeof(*profile->values));
}

/* Space for a string in the block in use, or in a new one. */
static char *
string_space(struct ef_profile_inner *inner, size_t bytes)
{
    struct block *block = inner->blocks;

    if (block == NULL || block->cap - block->used < bytes) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = malloc(sizeof(*block) + cap);
        if (block == NULL)
            return NULL;
        *block = (struct block){.next = inner->blocks, .cap = cap};
        inner->blocks = block;
        inner->block_bytes += sizeof(*block) + cap;
    }
    block->used += bytes;
    return block->bytes + block->used - bytes;
}

static uint32_t
string_find(const struct ef_profile_inner *inner, uint64_t hash, const char *text, size_t len)
{
    const struct table *table = &inner->strings;
    uint32_t i = (uint32_t)(hash >> 32) & (table->slot_count - 1);

    if (table->slot_count == 0)
        return 0;
    for (; table->slots[i] != 0; i = (i + 1) & (table->slot_count - 1)) {
        uint32_t id = (uint32_t)table->slots[i];
        if (table->slots[i] == slot_of(hash, id) && inner->texts[id].len == len &&
            memcmp(inner->texts[id].bytes, text, len) == 0)
            return id;
    }
    return 0;
}

/* Adds text that is known to be valid UTF-8. */
static ef_rc
add_clean_string(struct ef_profile_inner *inner, const char *text, size_t len, uint32_t *ret_id,
                 struct ef_err *err)
{
    uint64_t hash = ef_hash(text, len);
    uint32_t id = len == 0 ? 0 : string_find(inner, hash, text, len);
    size_t bytes = len + 1 + STRING_OVERHEAD_BYTES;
    char *space;

    if (len == 0 || id != 0) {
        *ret_id = id;
        return EF_OK;
    }
    if (len >= UINT32_MAX || bytes > inner->limits.string_bytes_max - inner->string_bytes ||
        inner->string_count >= COUNT_MAX)
        return ef_err_set(err, EF_ELIMIT, "the profile has more than %zu bytes of strings",
                          inner->limits.string_bytes_max);
    if (inner->string_count == inner->string_cap) {
        if (!grow_array(&inner->texts, next_cap(inner->string_cap), sizeof(*inner->texts)))
            return no_memory(err);
        inner->string_cap = next_cap(inner->string_cap);
    }
    if (!table_reserve(&inner->strings))
        return no_memory(err);
    space = string_space(inner, len + 1);
    if (space == NULL)
        return no_memory(err);
    memcpy(space, text, len);
    space[len] = '\0';
    id = inner->string_count++;
    inner->texts[id] = (struct text){space, (uint32_t)len};
    inner->string_bytes += bytes;
    table_place(&inner->strings, slot_of(hash, id));
    inner->strings.count++;
    *ret_id = id;
    return EF_OK;
}

/* Length of the valid UTF-8 character at `text`, or 0. */
static size_t
character_len(const char *text, size_t left)
{
    for (size_t len = 1; len <= 4 && len <= left; len++) {
        if (ef_utf8_valid(text, len))
            return len;
    }
    return 0;
}

ef_rc
ef_profile_add_string(struct ef_profile *profile, const char *text, size_t len, uint32_t *ret_id,
                      struct ef_err *err)
{
    char *clean;
    ef_rc rc;

    if (len == 0 || ef_utf8_valid(text, len))
        return add_clean_string(profile->inner, text, len, ret_id, err);
    clean = malloc(len);
    if (clean == NULL)
        return no_memory(err);
    for (size_t i = 0; i < len;) {
        size_t step = character_len(text + i, len - i);
        if (step == 0)
            clean[i] = '?';
        else
            memcpy(clean + i, text + i, step);
        i += step == 0 ? 1 : step;
    }
    rc = add_clean_string(profile->inner, clean, len, ret_id, err);
    free(clean);
    return rc;
}

const char *
ef_profile_string(const struct ef_profile *profile, uint32_t id)
{
    return id < profile->inner->string_count ? profile->inner->texts[id].bytes : "";
}

ef_rc
ef_profile_add_type(struct ef_profile *profile, const char *type, const char *unit,
                    struct ef_err *err)
{
    struct ef_profile_type added;
    int64_t *values;
    ef_rc rc;

    if (profile->node_count > 1)
        return ef_err_set(err, EF_EINVAL, "sample type '%s' comes after the first stack", type);
    if (profile->type_count == EF_PROFILE_TYPES_MAX)
        return ef_err_set(err, EF_ELIMIT, "the profile has more than %d sample types",
                          EF_PROFILE_TYPES_MAX);
    rc = ef_profile_add_string(profile, type, strlen(type), &added.type, err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, unit, strlen(unit), &added.unit, err);
    if (rc != EF_OK)
        return rc;
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (profile->types[i].type == added.type && profile->types[i].unit == added.unit)
            return ef_err_set(err, EF_EINVAL, "sample type '%s/%s' occurs twice", type, unit);
    }
    values = realloc(profile->values, (size_t)profile->inner->node_cap * (profile->type_count + 1) *
                                          sizeof(*values));
    if (values == NULL)
        return no_memory(err);
    values[profile->type_count] = 0;
    profile->values = values;
    profile->types[profile->type_count++] = added;
    return EF_OK;
}

static ef_rc
bad_id(struct ef_err *err, const char *what, uint32_t id)
{
    return ef_err_set(err, EF_EINVAL, "%s %" PRIu32 " is not in the profile", what, id);
}

ef_rc
ef_profile_add_mapping(struct ef_profile *profile, const struct ef_profile_mapping *mapping,
                       uint32_t *ret_id, struct ef_err *err)
{
    struct ef_profile_inner *inner = profile->inner;

    if (mapping->file >= inner->string_count || mapping->build_id >= inner->string_count)
        return bad_id(err, "string",
                      mapping->file >= inner->string_count ? mapping->file : mapping->build_id);
    return intern(&inner->mappings, &profile->mappings, &profile->mapping_count,
                  &inner->mapping_cap, inner->limits.functions_max, sizeof(*mapping), mapping,
                  "mappings", ret_id, err);
}

ef_rc
ef_profile_add_function(struct ef_profile *profile, const struct ef_profile_function *function,
                        uint32_t *ret_id, struct ef_err *err)
{
    struct ef_profile_inner *inner = profile->inner;
    struct ef_profile_function key = *function;

    if (key.name >= inner->string_count)
        return bad_id(err, "string", key.name);
    if (key.system_name >= inner->string_count)
        return bad_id(err, "string", key.system_name);
    if (key.file >= inner->string_count)
        return bad_id(err, "string", key.file);
    if (key.system_name == key.name)
        key.system_name = 0;
    return intern(&inner->functions, &profile->functions, &profile->function_count,
                  &inner->function_cap, inner->limits.functions_max, sizeof(key), &key, "functions",
                  ret_id, err);
}

ef_rc
ef_profile_add_frame(struct ef_profile *profile, const struct ef_profile_frame *frame,
                     uint32_t *ret_id, struct ef_err *err)
{
    struct ef_profile_inner *inner = profile->inner;

    if (frame->function >= profile->function_count)
        return bad_id(err, "function", frame->function);
    if (frame->mapping >= profile->mapping_count)
        return bad_id(err, "mapping", frame->mapping);
    return intern(&inner->frames, &profile->frames, &profile->frame_count, &inner->frame_cap,
                  inner->limits.functions_max, sizeof(*frame), frame, "frames", ret_id, err);
}

/* Nodes have a second array beside them, their values, which grows with the first. */
static ef_rc
grow_nodes(struct ef_profile *profile, struct ef_err *err)
{
    struct ef_profile_inner *inner = profile->inner;
    uint32_t cap = next_cap(inner->node_cap);

    if (!grow_array(&profile->nodes, cap, sizeof(*profile->nodes)))
        return no_memory(err);
    if (profile->type_count > 0 &&
        !grow_array(&profile->values, cap, profile->type_count * sizeof(*profile->values)))
        return no_memory(err);
    inner->node_cap = cap;
    return EF_OK;
}

ef_rc
ef_profile_add_node(struct ef_profile *profile, uint32_t parent, uint32_t frame, uint32_t *ret_node,
                    struct ef_err *err)
{
    struct ef_profile_inner *inner = profile->inner;
    const struct ef_profile_node key = {parent, frame};
    uint64_t hash = (((uint64_t)parent << 32 | frame) + 1) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t id;

    hash ^= hash << 32; /* The slot comes from the upper half: let all bits take part. */
    id = table_find(&inner->nodes, hash, profile->nodes, sizeof(key), &key);
    if (id != 0) {
        *ret_node = id;
        return EF_OK;
    }
    if (parent >= profile->node_count)
        return bad_id(err, "node", parent);
    if (frame == 0 || frame >= profile->frame_count)
        return bad_id(err, "frame", frame);
    if (profile->node_count > inner->limits.nodes_max)
        return ef_err_set(err, EF_ELIMIT, "the profile has more than %" PRIu32 " stacks",
                          inner->limits.nodes_max);
    if (profile->node_count == inner->node_cap) {
        ef_rc rc = grow_nodes(profile, err);
        if (rc != EF_OK)
            return rc;
    }
    if (!table_reserve(&inner->nodes))
        return no_memory(err);
    id = profile->node_count++;
    profile->nodes[id] = key;
    for (uint32_t type = 0; type < profile->type_count; type++)
        profile->values[(size_t)id * profile->type_count + type] = 0;
    table_place(&inner->nodes, slot_of(hash, id));
    inner->nodes.count++;
    *ret_node = id;
    return EF_OK;
}

ef_rc
ef_profile_add_value(struct ef_profile *profile, uint32_t node, uint32_t type, int64_t value,
                     struct ef_err *err)
{
    int64_t *at;

    if (node >= profile->node_count)
        return bad_id(err, "node", node);
    if (type >= profile->type_count)
        return bad_id(err, "sample type", type);
    at = &profile->values[(size_t)node * profile->type_count + type];
    if (!ef_add_i64(*at, value, at))
        return ef_err_set(err, EF_ELIMIT, "a sum of '%s' does not fit 64 bits",
                          ef_profile_string(profile, profile->types[type].type));
    return EF_OK;
}

/* Numbers of the other profile's things in this one; 0 = not yet translated, or "none". */
struct translation {
    struct ef_profile *to;
    const struct ef_profile *from;
    uint32_t *mappings, *functions, *frames, *nodes;
};

static ef_rc
translate_string(const struct translation *translation, uint32_t id, uint32_t *ret_id,
                 struct ef_err *err)
{
    const struct ef_profile_inner *from = translation->from->inner;

    if (id >= from->string_count)
        return bad_id(err, "string", id);
    return add_clean_string(translation->to->inner, from->texts[id].bytes, from->texts[id].len,
                            ret_id, err);
}

static ef_rc
translate_mapping(struct translation *translation, uint32_t id, uint32_t *ret_id,
                  struct ef_err *err)
{
    struct ef_profile_mapping mapping = translation->from->mappings[id];
    ef_rc rc = EF_OK;

    if (id != 0 && translation->mappings[id] == 0) {
        rc = translate_string(translation, mapping.file, &mapping.file, err);
        if (rc == EF_OK)
            rc = translate_string(translation, mapping.build_id, &mapping.build_id, err);
        if (rc == EF_OK)
            rc = ef_profile_add_mapping(translation->to, &mapping, &translation->mappings[id], err);
    }
    if (rc == EF_OK)
        *ret_id = translation->mappings[id];
    return rc;
}

static ef_rc
translate_function(struct translation *translation, uint32_t id, uint32_t *ret_id,
                   struct ef_err *err)
{
    struct ef_profile_function function = translation->from->functions[id];
    ef_rc rc = EF_OK;

    if (id != 0 && translation->functions[id] == 0) {
        rc = translate_string(translation, function.name, &function.name, err);
        if (rc == EF_OK)
            rc = translate_string(translation, function.system_name, &function.system_name, err);
        if (rc == EF_OK)
            rc = translate_string(translation, function.file, &function.file, err);
        if (rc == EF_OK)
            rc = ef_profile_add_function(translation->to, &function, &translation->functions[id],
                                         err);
    }
    if (rc == EF_OK)
        *ret_id = translation->functions[id];
    return rc;
}

static ef_rc
translate_frame(struct translation *translation, uint32_t id, uint32_t *ret_id, struct ef_err *err)
{
    struct ef_profile_frame frame = translation->from->frames[id];
    ef_rc rc = EF_OK;

    if (translation->frames[id] == 0) {
        rc = translate_function(translation, frame.function, &frame.function, err);
        if (rc == EF_OK)
            rc = translate_mapping(translation, frame.mapping, &frame.mapping, err);
        if (rc == EF_OK)
            rc = ef_profile_add_frame(translation->to, &frame, &translation->frames[id], err);
    }
    if (rc == EF_OK)
        *ret_id = translation->frames[id];
    return rc;
}

static ef_rc
add_scaled_values(struct translation *translation, uint32_t node, int64_t factor,
                  struct ef_err *err)
{
    uint32_t type_count = translation->from->type_count;

    for (uint32_t type = 0; type < type_count; type++) {
        int64_t value = translation->from->values[(size_t)node * type_count + type];
        ef_rc rc;
        if (value == 0)
            continue;
        if (!ef_mul_i64(value, factor, &value))
            return ef_err_set(err, EF_ELIMIT, "a value times %" PRId64 " does not fit 64 bits",
                              factor);
        rc = ef_profile_add_value(translation->to, translation->nodes[node], type, value, err);
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

static ef_rc
translate_nodes(struct translation *translation, int64_t factor, struct ef_err *err)
{
    const struct ef_profile *from = translation->from;
    uint32_t count = from->node_count; /* `to` may be `from`, which then gets no new nodes. */
    ef_rc rc = add_scaled_values(translation, 0, factor, err);

    for (uint32_t i = 1; i < count && rc == EF_OK; i++) {
        uint32_t frame;
        rc = translate_frame(translation, from->nodes[i].frame, &frame, err);
        if (rc == EF_OK)
            rc = ef_profile_add_node(translation->to, translation->nodes[from->nodes[i].parent],
                                     frame, &translation->nodes[i], err);
        if (rc == EF_OK)
            rc = add_scaled_values(translation, i, factor, err);
    }
    return rc;
}

static bool
same_type(const struct ef_profile *a, struct ef_profile_type left, const struct ef_profile *b,
          struct ef_profile_type right)
{
    return strcmp(ef_profile_string(a, left.type), ef_profile_string(b, right.type)) == 0 &&
           strcmp(ef_profile_string(a, left.unit), ef_profile_string(b, right.unit)) == 0;
}

static ef_rc
check_types(const struct ef_profile *profile, const struct ef_profile *other, struct ef_err *err)
{
    if (profile->type_count != other->type_count)
        return ef_err_set(err, EF_EINVAL,
                          "the profiles cannot be combined: %" PRIu32 " and %" PRIu32
                          " sample types",
                          profile->type_count, other->type_count);
    for (uint32_t i = 0; i < profile->type_count; i++) {
        struct ef_profile_type ours = profile->types[i], theirs = other->types[i];
        if (!same_type(profile, ours, other, theirs))
            return ef_err_set(
                err, EF_EINVAL, "the profiles cannot be combined: sample types '%s/%s' and '%s/%s'",
                ef_profile_string(profile, ours.type), ef_profile_string(profile, ours.unit),
                ef_profile_string(other, theirs.type), ef_profile_string(other, theirs.unit));
    }
    if (profile->period_type.type != 0 && other->period_type.type != 0 &&
        !same_type(profile, profile->period_type, other, other->period_type))
        return ef_err_set(err, EF_EINVAL,
                          "the profiles cannot be combined: period types '%s' and '%s'",
                          ef_profile_string(profile, profile->period_type.type),
                          ef_profile_string(other, other->period_type.type));
    return EF_OK;
}

static ef_rc
adopt_types(struct ef_profile *profile, const struct ef_profile *other, struct ef_err *err)
{
    ef_rc rc = EF_OK;

    for (uint32_t i = 0; i < other->type_count && rc == EF_OK; i++)
        rc = ef_profile_add_type(profile, ef_profile_string(other, other->types[i].type),
                                 ef_profile_string(other, other->types[i].unit), err);
    return rc;
}

/* What is said about the whole. A difference keeps the times of what it was taken from. */
static ef_rc
merge_about(struct translation *translation, int64_t factor, struct ef_err *err)
{
    struct ef_profile *to = translation->to;
    const struct ef_profile *from = translation->from;
    ef_rc rc = EF_OK;

    if (to->period_type.type == 0 && from->period_type.type != 0) {
        rc = translate_string(translation, from->period_type.type, &to->period_type.type, err);
        if (rc == EF_OK)
            rc = translate_string(translation, from->period_type.unit, &to->period_type.unit, err);
    }
    if (from->period > to->period)
        to->period = from->period;
    to->samples = ef_sat_add_u64(to->samples, from->samples);
    to->labels_dropped = ef_sat_add_u64(to->labels_dropped, from->labels_dropped);
    if (factor < 0)
        return rc;
    if (to->time_ns == 0 || (from->time_ns != 0 && from->time_ns < to->time_ns))
        to->time_ns = from->time_ns;
    if (!ef_add_i64(to->duration_ns, from->duration_ns, &to->duration_ns))
        to->duration_ns = INT64_MAX;
    return rc;
}

static ef_rc
merge_mappings(struct translation *translation, struct ef_err *err)
{
    uint32_t count = translation->from->mapping_count;
    ef_rc rc = EF_OK;

    /* Also those that no frame uses: the first one names the program. */
    for (uint32_t i = 1, id; i < count && rc == EF_OK; i++)
        rc = translate_mapping(translation, i, &id, err);
    return rc;
}

ef_rc
ef_profile_merge(struct ef_profile *profile, const struct ef_profile *other, int64_t factor,
                 struct ef_err *err)
{
    struct translation translation = {.to = profile, .from = other};
    ef_rc rc = EF_OK;

    if (profile->type_count == 0 && profile->node_count == 1)
        rc = adopt_types(profile, other, err);
    if (rc == EF_OK)
        rc = check_types(profile, other, err);
    if (rc != EF_OK)
        return rc;
    translation.mappings = calloc(other->mapping_count, sizeof(uint32_t));
    translation.functions = calloc(other->function_count, sizeof(uint32_t));
    translation.frames = calloc(other->frame_count, sizeof(uint32_t));
    translation.nodes = calloc(other->node_count, sizeof(uint32_t));
    if (translation.mappings == NULL || translation.functions == NULL ||
        translation.frames == NULL || translation.nodes == NULL) {
        rc = no_memory(err);
        goto out;
    }
    rc = merge_mappings(&translation, err);
    if (rc == EF_OK)
        rc = translate_nodes(&translation, factor, err);
    if (rc == EF_OK)
        rc = merge_about(&translation, factor, err);
out:
    free(translation.mappings);
    free(translation.functions);
    free(translation.frames);
    free(translation.nodes);
    return rc;
}

const char *
ef_profile_frame_name(const struct ef_profile *profile, uint32_t frame, char *buf, size_t len)
{
    const struct ef_profile_frame *at;
    const char *name;

    if (frame == 0 || frame >= profile->frame_count)
        return "(unknown)";
    at = &profile->frames[frame];
    if (at->function != 0) {
        const struct ef_profile_function *function = &profile->functions[at->function];
        name = ef_profile_string(profile,
                                 function->name != 0 ? function->name : function->system_name);
        return name[0] != '\0' ? name : EF_PROFILE_ANONYMOUS;
    }
    name = ef_profile_string(profile, profile->mappings[at->mapping].file);
    if (name[0] != '\0')
        snprintf(buf, len, "0x%" PRIx64 " [%s]", at->address, name);
    else
        snprintf(buf, len, "0x%" PRIx64, at->address);
    return buf;
}

static int64_t
saturating_add(int64_t a, int64_t b)
{
    int64_t sum;

    if (ef_add_i64(a, b, &sum))
        return sum;
    return b > 0 ? INT64_MAX : INT64_MIN;
}

int64_t
ef_profile_total(const struct ef_profile *profile, uint32_t type)
{
    __int128 sum = 0; /* 2^30 nodes of 2^63 fit: the order of signs cannot matter. */

    if (type >= profile->type_count)
        return 0;
    for (uint32_t i = 0; i < profile->node_count; i++)
        sum += profile->values[(size_t)i * profile->type_count + type];
    if (sum > INT64_MAX)
        return INT64_MAX;
    return sum < INT64_MIN ? INT64_MIN : (int64_t)sum;
}

/* What makes two frames the same row: name, file and first line, or else the address. */
struct row_key {
    uint32_t name, file, start_line, mapping;
    uint64_t address;
};
_Static_assert(sizeof(struct row_key) == 24, "padding in a hashed struct");

static struct row_key
row_key_of(const struct ef_profile *profile, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &profile->frames[frame_id];
    const struct ef_profile_function *function = &profile->functions[frame->function];

    if (frame->function == 0)
        return (struct row_key){.mapping = frame->mapping, .address = frame->address};
    return (struct row_key){
        .name = function->name != 0 ? function->name : function->system_name,
        .file = function->file,
        .start_line = function->start_line,
        .mapping = UINT32_MAX, /* Tells a function from the address 0. */
    };
}

/* The working memory of ef_profile_rows. */
struct row_build {
    const struct ef_profile *profile;
    struct ef_profile_row *rows; /* row 0 is "no frame" */
    uint32_t row_count;
    uint32_t *row_of_frame; /* 0 = not yet known */
    struct row_key *keys;
    uint32_t key_cap;
    struct table table;
    int64_t *subtree;      /* per node and type */
    uint32_t *first_child; /* 0 = none */
    uint32_t *next_sibling;
    uint32_t *on_path; /* per row: how often it is on the path now walked */
};

static ef_rc
number_rows(struct row_build *build, struct ef_err *err)
{
    const struct ef_profile *profile = build->profile;

    build->row_count = 1;
    for (uint32_t i = 1; i < profile->node_count; i++) {
        uint32_t frame = profile->nodes[i].frame;
        struct row_key key;
        ef_rc rc;
        if (build->row_of_frame[frame] != 0)
            continue;
        key = row_key_of(profile, frame);
        rc = intern(&build->table, &build->keys, &build->row_count, &build->key_cap, COUNT_MAX,
                    sizeof(key), &key, "rows", &build->row_of_frame[frame], err);
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

static void
sum_subtrees(struct row_build *build)
{
    const struct ef_profile *profile = build->profile;
    uint32_t types = profile->type_count;

    if (types > 0)
        memcpy(build->subtree, profile->values,
               (size_t)profile->node_count * types * sizeof(*build->subtree));
    for (uint32_t i = profile->node_count - 1; i > 0; i--) {
        uint32_t parent = profile->nodes[i].parent;
        for (uint32_t type = 0; type < types; type++)
            build->subtree[(size_t)parent * types + type] =
                saturating_add(build->subtree[(size_t)parent * types + type],
                               build->subtree[(size_t)i * types + type]);
        build->next_sibling[i] = build->first_child[parent];
        build->first_child[parent] = i;
    }
}

static void
enter_node(struct row_build *build, uint32_t node)
{
    const struct ef_profile *profile = build->profile;
    uint32_t types = profile->type_count;
    uint32_t row = build->row_of_frame[profile->nodes[node].frame];
    struct ef_profile_row *at = &build->rows[row];
    bool outermost = build->on_path[row]++ == 0;

    if (at->frame == 0)
        at->frame = profile->nodes[node].frame;
    for (uint32_t type = 0; type < types; type++) {
        size_t index = (size_t)node * types + type;
        at->self[type] = saturating_add(at->self[type], profile->values[index]);
        if (outermost)
            at->total[type] = saturating_add(at->total[type], build->subtree[index]);
    }
}

/* Walks depth first along the links, without a stack: the way back is the parent. */
static void
sum_rows(struct row_build *build)
{
    const struct ef_profile *profile = build->profile;
    uint32_t node = build->first_child[0];

    while (node != 0) {
        enter_node(build, node);
        if (build->first_child[node] != 0) {
            node = build->first_child[node];
            continue;
        }
        while (node != 0) {
            uint32_t next = build->next_sibling[node];
            build->on_path[build->row_of_frame[profile->nodes[node].frame]]--;
            node = next != 0 ? next : profile->nodes[node].parent;
            if (next != 0)
                break;
        }
    }
}

static bool
alloc_build(struct row_build *build)
{
    uint32_t nodes = build->profile->node_count;

    build->row_of_frame = calloc(build->profile->frame_count, sizeof(*build->row_of_frame));
    build->subtree =
        calloc((size_t)nodes * build->profile->type_count + 1, sizeof(*build->subtree));
    build->first_child = calloc(nodes, sizeof(*build->first_child));
    build->next_sibling = calloc(nodes, sizeof(*build->next_sibling));
    return build->row_of_frame != NULL && build->subtree != NULL && build->first_child != NULL &&
           build->next_sibling != NULL;
}

ef_rc
ef_profile_rows(const struct ef_profile *profile, struct ef_profile_row **ret_rows,
                size_t *ret_count, struct ef_err *err)
{
    struct row_build build = {.profile = profile};
    ef_rc rc = EF_OK;

    if (!alloc_build(&build)) {
        rc = no_memory(err);
        goto out;
    }
    rc = number_rows(&build, err);
    if (rc != EF_OK)
        goto out;
    build.rows = calloc(build.row_count, sizeof(*build.rows));
    build.on_path = calloc(build.row_count, sizeof(*build.on_path));
    if (build.rows == NULL || build.on_path == NULL) {
        rc = no_memory(err);
        goto out;
    }
    sum_subtrees(&build);
    sum_rows(&build);
    *ret_count = build.row_count - 1;
    memmove(build.rows, build.rows + 1, *ret_count * sizeof(*build.rows)); /* row 0 is no row */
    *ret_rows = build.rows;
    build.rows = NULL; /* moved to the caller */
out:
    free(build.rows);
    free(build.row_of_frame);
    free(build.keys);
    free(build.table.slots);
    free(build.subtree);
    free(build.first_child);
    free(build.next_sibling);
    free(build.on_path);
    return rc;
}
