/*
 * Decides how the stacks and functions of a version are held in memory: 12 bytes a stack, 24 a
 * function, each file name once. Must not know which of them a query wants. Loaded by whichever
 * thread finds them missing; immutable afterwards.
 */
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

#define ROOM_FIRST 256u
#define IDS_MAX (1u << 24) /* far above stacks_per_version_max; keeps sizes from running away */

struct loading {
    struct ef_definitions *definitions;
    uint32_t function_room, stack_room;
    struct ef_map files; /* hash of a file name -> offset */
    uint64_t bytes_max;
    struct ef_err *err;
};

static bool
make_room(void *array_at, uint32_t id, uint32_t *room, size_t size)
{
    void **array = array_at;
    uint32_t wanted = *room == 0 ? ROOM_FIRST : *room * 2;
    void *grown;

    if (id < *room)
        return true;
    grown = reallocarray(*array, wanted, size);
    if (grown == NULL)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}

static ef_rc
check_bytes(struct loading *loading)
{
    struct ef_definitions *definitions = loading->definitions;

    definitions->bytes = sizeof(*definitions) + definitions->text.cap +
                         loading->function_room * sizeof(*definitions->functions) +
                         loading->stack_room * sizeof(*definitions->stacks);
    if (definitions->bytes > loading->bytes_max)
        return ef_err_set(loading->err, EF_ELIMIT,
                          "the stacks of one version need more than %llu bytes: raise the memory "
                          "of queries",
                          (unsigned long long)loading->bytes_max);
    return EF_OK;
}

static uint32_t
keep(struct loading *loading, const char *text, bool once)
{
    struct ef_buf *buf = &loading->definitions->text;
    size_t len = strlen(text);
    uint64_t *known = NULL;
    bool is_new = true;

    if (once)
        known = ef_map_upsert(&loading->files, ef_hash(text, len), &is_new);
    if (!is_new)
        return (uint32_t)*known;
    if (known != NULL)
        *known = buf->len;
    ef_buf_append(buf, text, len + 1);
    return (uint32_t)(buf->len - len - 1);
}

static ef_rc
take_function(void *arg, const struct ef_store_function *function)
{
    struct loading *loading = arg;
    struct ef_definitions *definitions = loading->definitions;

    if (function->id != definitions->function_count + 1 || function->id >= IDS_MAX)
        return ef_err_set(loading->err, EF_ECORRUPT, "function %u follows function %u",
                          function->id, definitions->function_count);
    if (!make_room(&definitions->functions, function->id, &loading->function_room,
                   sizeof(*definitions->functions)))
        return ef_err_set(loading->err, EF_ENOMEM, "no memory for functions");
    definitions->functions[function->id] =
        (struct ef_definition_function){.hash = function->hash,
                                        .name = keep(loading, function->name, false),
                                        .file = keep(loading, function->file, true),
                                        .line = function->line};
    definitions->function_count = function->id;
    return check_bytes(loading);
}

static bool
called_by_itself(const struct ef_definitions *definitions, uint32_t parent, uint32_t function)
{
    for (; parent != 0; parent = definitions->stacks[parent].parent) {
        if (definitions->stacks[parent].function == function)
            return true;
    }
    return false;
}

static ef_rc
take_stack(void *arg, const struct ef_store_stack *stack)
{
    struct loading *loading = arg;
    struct ef_definitions *definitions = loading->definitions;

    if (stack->id != definitions->stack_count + 1 || stack->id >= IDS_MAX)
        return ef_err_set(loading->err, EF_ECORRUPT, "stack %u follows stack %u", stack->id,
                          definitions->stack_count);
    if (stack->parent >= stack->id || stack->function == 0 || stack->function >= IDS_MAX)
        return ef_err_set(loading->err, EF_ECORRUPT,
                          "stack %u names caller %u and function %u, which are not there",
                          stack->id, stack->parent, stack->function);
    if (!make_room(&definitions->stacks, stack->id, &loading->stack_room,
                   sizeof(*definitions->stacks)))
        return ef_err_set(loading->err, EF_ENOMEM, "no memory for stacks");
    definitions->stacks[stack->id] = (struct ef_definition_stack){
        .parent = stack->parent,
        .function = stack->function,
        .first = !called_by_itself(definitions, stack->parent, stack->function),
        .line = stack->line};
    definitions->stack_count = stack->id;
    return check_bytes(loading);
}

static ef_rc
check_functions(const struct ef_definitions *definitions, struct ef_err *err)
{
    for (uint32_t id = 1; id <= definitions->stack_count; id++) {
        if (definitions->stacks[id].function > definitions->function_count)
            return ef_err_set(err, EF_ECORRUPT, "stack %u names function %u of %u", id,
                              definitions->stacks[id].function, definitions->function_count);
    }
    return EF_OK;
}

ef_rc
ef_query_definitions_load(struct ef_store *store, uint32_t version_id, uint64_t bytes_max,
                          struct ef_definitions **ret_definitions, struct ef_err *err)
{
    struct ef_definitions *definitions = calloc(1, sizeof(*definitions));
    struct loading loading = {definitions, 0, 0, {0}, bytes_max, err};
    ef_rc rc = EF_OK;

    if (definitions == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for definitions");
    atomic_init(&definitions->refs, 1);
    definitions->version_id = version_id;
    ef_buf_init(&definitions->text, bytes_max < UINT32_MAX ? bytes_max : UINT32_MAX);
    ef_map_init(&loading.files, 1u << 16);
    if (!make_room(&definitions->stacks, 0, &loading.stack_room, sizeof(*definitions->stacks)) ||
        !make_room(&definitions->functions, 0, &loading.function_room,
                   sizeof(*definitions->functions)))
        rc = ef_err_set(err, EF_ENOMEM, "no memory for definitions");
    /* Stacks first: the functions they name were put with them, so none is missing. */
    if (rc == EF_OK) {
        definitions->stacks[0] = (struct ef_definition_stack){0};
        definitions->functions[0] = (struct ef_definition_function){0};
        rc = ef_store_each_stack(store, version_id, take_stack, &loading, err);
    }
    if (rc == EF_OK)
        rc = ef_store_each_function(store, version_id, take_function, &loading, err);
    if (rc == EF_OK)
        rc = ef_buf_check(&definitions->text, "function names", err);
    if (rc == EF_OK)
        rc = check_functions(definitions, err);
    ef_map_fini(&loading.files);
    if (rc != EF_OK) {
        ef_err_prefix(err, "definitions of version %u", version_id);
        ef_query_definitions_unref(definitions);
        return rc;
    }
    *ret_definitions = definitions;
    return EF_OK;
}

void
ef_query_definitions_unref(struct ef_definitions *definitions)
{
    if (definitions == NULL || atomic_fetch_sub(&definitions->refs, 1) != 1)
        return;
    free(definitions->functions);
    free(definitions->stacks);
    ef_buf_fini(&definitions->text);
    free(definitions);
}
