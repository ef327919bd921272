/*
 * Decides which pprof files are accepted and how they become a profile. Walks the protobuf several
 * times, once for each kind of message, because the order of fields is free: strings may come last.
 * Must not know who sent it. Any thread.
 *
 * What is refused, because it would give wrong numbers or names: another count of values than of
 * types, an id that is referred to but not there, an id that is there twice, a string index outside
 * the table, several profiles in one file. What is dropped alone: an element with the id 0 and
 * references to it. What is accepted: no period type, no mapping, an unknown mapping, negative
 * values, no samples.
 */
#include "proto/pprof/pprof.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/map.h"
#include "proto/pprof/fields.h"

#define DENSE_IDS_MAX (UINT32_C(1) << 20) /* ids below are looked up in an array; chosen: 4 MB */
#define STRINGS_PER_FUNCTION 16u          /* labels included; 16 M strings at the default limits */
#define LINES_PER_LOCATION 4u             /* inlined calls, on average over the file; chosen */
#define NOT_ADDED UINT32_MAX
#define UNKNOWN_NAME "(unknown)"

struct field {
    uint32_t number;
    enum ef_pb_wire wire;
    uint64_t value;         /* of a number */
    struct ef_cursor bytes; /* of a message, string or packed list */
};

struct string_ref {
    uint32_t offset, len; /* in the input, which is under 4 GB */
    uint32_t id;          /* in the profile, or NOT_ADDED */
};

/* From ids of the file to 1-based numbers of ours; 0 = not there. */
struct id_map {
    uint32_t *dense;
    uint32_t dense_cap;
    uint32_t count, count_max;
    struct ef_map sparse;
};

struct location {
    uint32_t first, count; /* in reader.frames, leaf first */
};

struct reader {
    const uint8_t *data;
    size_t len;
    struct ef_profile *profile;
    const struct ef_profile_limits *limits;
    struct ef_err *err;
    struct string_ref *strings;
    uint32_t string_count, string_cap, empty_string_count;
    struct id_map mappings, functions, locations;
    struct location *location_list; /* by the number of id_map, minus 1 */
    uint32_t location_cap;
    uint32_t *frames;
    uint32_t frame_count, frame_cap;
    uint64_t sample_count;
    bool seen[PPROF_FIELDS];
    uint64_t period_type_type, period_type_unit; /* string indexes */
    /* The sample being read, leaf first, and the path of the one before, root first. */
    uint32_t stack[EF_PROFILE_DEPTH_MAX];
    uint32_t path_frames[EF_PROFILE_DEPTH_MAX];
    uint32_t path_nodes[EF_PROFILE_DEPTH_MAX];
    uint32_t path_len;
};

#define CORRUPT(reader, ...) ef_err_set((reader)->err, EF_ECORRUPT, "pprof: " __VA_ARGS__)

static ef_rc
no_memory(struct reader *reader)
{
    return ef_err_set(reader->err, EF_ENOMEM, "out of memory while reading a pprof");
}

static ef_rc
damaged(struct reader *reader, const char *what, uint64_t number)
{
    return CORRUPT(reader, "%s %" PRIu64 " is damaged", what, number);
}

static ef_rc
several_profiles(struct reader *reader, const char *sign)
{
    return CORRUPT(reader,
                   "%s occurs twice: these seem to be several profiles one after another; "
                   "merge them instead",
                   sign);
}

/* Reads the next field; false at the end and when the rest is not protobuf (cursor->failed). */
static bool
next_field(struct ef_cursor *cursor, struct field *field)
{
    uint64_t key, len;
    const uint8_t *at;

    if (cursor->at == cursor->end)
        return false;
    key = ef_cursor_varint(cursor);
    field->wire = (enum ef_pb_wire)(key & 7);
    field->value = 0;
    if (key >> 3 == 0 || key >> 32 != 0)
        goto bad;
    field->number = (uint32_t)(key >> 3);
    switch (field->wire) {
    case EF_PB_VARINT:
        field->value = ef_cursor_varint(cursor);
        return !cursor->failed;
    case EF_PB_FIXED64:
        field->value = ef_cursor_le64(cursor);
        return !cursor->failed;
    case EF_PB_FIXED32:
        field->value = ef_cursor_le32(cursor);
        return !cursor->failed;
    case EF_PB_BYTES:
        len = ef_cursor_varint(cursor);
        if (cursor->failed || len > ef_cursor_left(cursor))
            goto bad;
        at = ef_cursor_bytes(cursor, (size_t)len);
        field->bytes = ef_cursor_of(at, (size_t)len);
        return true;
    }
bad:
    cursor->failed = true;
    return false;
}

/* The next top-level field of this number. */
static bool
next_of(struct ef_cursor *cursor, uint32_t number, struct field *field)
{
    while (next_field(cursor, field)) {
        if (field->number == number)
            return true;
    }
    return false;
}

/*
 * Reads the next member of a message whose known members are numbers, except those in the bit set
 * `messages`. A known member of another form is damage; unknown members are skipped.
 */
static bool
next_member(struct ef_cursor *cursor, uint32_t known_max, uint32_t messages, struct field *field)
{
    while (next_field(cursor, field)) {
        enum ef_pb_wire wanted;
        if (field->number > known_max)
            continue;
        wanted = messages & (1u << field->number) ? EF_PB_BYTES : EF_PB_VARINT;
        if (field->wire == wanted)
            return true;
        cursor->failed = true;
    }
    return false;
}

static bool
grow(void *array_ptr, uint32_t *cap, uint32_t count, size_t size)
{
    void **array = array_ptr;
    uint32_t bigger = *cap < 64 ? 64 : *cap * 2;
    void *moved;

    if (count < *cap)
        return true;
    moved = realloc(*array, (size_t)bigger * size);
    if (moved == NULL)
        return false;
    *array = moved;
    *cap = bigger;
    return true;
}

static uint32_t
id_map_get(const struct id_map *map, uint64_t id)
{
    const uint64_t *found;

    if (id < map->dense_cap)
        return map->dense[id];
    if (id < DENSE_IDS_MAX)
        return 0;
    found = ef_map_get(&map->sparse, id);
    return found != NULL ? (uint32_t)*found : 0;
}

static ef_rc
grow_dense(struct reader *reader, struct id_map *map, uint64_t id)
{
    uint32_t cap = map->dense_cap < 256 ? 256 : map->dense_cap;
    uint32_t *dense;

    while (cap <= id)
        cap *= 2;
    dense = realloc(map->dense, cap * sizeof(*dense));
    if (dense == NULL)
        return no_memory(reader);
    memset(dense + map->dense_cap, 0, (cap - map->dense_cap) * sizeof(*dense));
    map->dense = dense;
    map->dense_cap = cap;
    return EF_OK;
}

/* Notes that `id` is `number` (not 0). */
static ef_rc
id_map_add(struct reader *reader, struct id_map *map, uint64_t id, uint32_t number,
           const char *what)
{
    bool is_new;
    uint64_t *value;

    if (id_map_get(map, id) != 0)
        return CORRUPT(reader, "%s id %" PRIu64 " occurs twice; are these several profiles in one?",
                       what, id);
    if (map->count++ >= map->count_max)
        return ef_err_set(reader->err, EF_ELIMIT, "pprof: more than %" PRIu32 " %ss",
                          map->count_max, what);
    if (id < DENSE_IDS_MAX) {
        if (id >= map->dense_cap) {
            ef_rc rc = grow_dense(reader, map, id);
            if (rc != EF_OK)
                return rc;
        }
        map->dense[id] = number;
        return EF_OK;
    }
    value = ef_map_upsert(&map->sparse, id, &is_new);
    if (value == NULL)
        return no_memory(reader);
    *value = number;
    return EF_OK;
}

static ef_rc
add_string_ref(struct reader *reader, const struct field *field)
{
    size_t len = ef_cursor_left(&field->bytes);
    uint64_t max = (uint64_t)reader->limits->functions_max * STRINGS_PER_FUNCTION;

    if (field->wire != EF_PB_BYTES)
        return damaged(reader, "string", reader->string_count);
    if (reader->string_count == 0 && len > 0)
        return CORRUPT(reader, "the first string is not empty");
    if (reader->string_count >= max || reader->string_count >= NOT_ADDED / 2)
        return ef_err_set(reader->err, EF_ELIMIT, "pprof: more than %" PRIu64 " strings", max);
    if (!grow(&reader->strings, &reader->string_cap, reader->string_count,
              sizeof(*reader->strings)))
        return no_memory(reader);
    reader->empty_string_count += len == 0;
    reader->strings[reader->string_count++] =
        (struct string_ref){(uint32_t)(field->bytes.at - reader->data), (uint32_t)len, NOT_ADDED};
    return EF_OK;
}

/* The profile's string for an index of the table; `what` says whose it is. */
static ef_rc
string_at(struct reader *reader, uint64_t index, const char *what, uint32_t *ret_id)
{
    struct string_ref *ref;
    ef_rc rc = EF_OK;

    if (index >= reader->string_count)
        return CORRUPT(reader, "%s: string %" PRId64 " is outside the table of %" PRIu32, what,
                       (int64_t)index, reader->string_count);
    ref = &reader->strings[index];
    if (ref->id == NOT_ADDED)
        rc = ef_profile_add_string(reader->profile, (const char *)reader->data + ref->offset,
                                   ref->len, &ref->id, reader->err);
    if (rc == EF_OK)
        *ret_id = ref->id;
    return rc;
}

static ef_rc
read_value_type(struct reader *reader, struct field *message, uint64_t *ret_type,
                uint64_t *ret_unit)
{
    struct field field;

    *ret_type = *ret_unit = 0;
    if (message->wire != EF_PB_BYTES)
        return damaged(reader, "value type in field", message->number);
    while (next_member(&message->bytes, VALUE_TYPE_UNIT, 0, &field)) {
        if (field.number == VALUE_TYPE_TYPE)
            *ret_type = field.value;
        else
            *ret_unit = field.value;
    }
    if (message->bytes.failed)
        return damaged(reader, "value type in field", message->number);
    return EF_OK;
}

/* The fields that a profile has once. Writers leave out what is 0, so twice means two profiles. */
static ef_rc
read_single(struct reader *reader, struct field *field)
{
    struct ef_profile *profile = reader->profile;

    if (reader->seen[field->number])
        return several_profiles(reader, field->number == PPROF_PERIOD        ? "the period"
                                        : field->number == PPROF_PERIOD_TYPE ? "the period type"
                                        : field->number == PPROF_TIME        ? "the time"
                                                                             : "the duration");
    reader->seen[field->number] = true;
    if (field->number == PPROF_PERIOD_TYPE)
        return read_value_type(reader, field, &reader->period_type_type, &reader->period_type_unit);
    if (field->wire != EF_PB_VARINT)
        return damaged(reader, "field", field->number);
    if (field->number == PPROF_TIME)
        profile->time_ns = (int64_t)field->value;
    else if (field->number == PPROF_DURATION)
        profile->duration_ns = (int64_t)field->value;
    else
        profile->period = (int64_t)field->value;
    return EF_OK;
}

/* First walk: strings, what is said once, and whether all of it is protobuf. */
static ef_rc
scan(struct reader *reader)
{
    struct ef_cursor cursor = ef_cursor_of(reader->data, reader->len);
    struct field field;
    ef_rc rc = EF_OK;

    while (rc == EF_OK && next_field(&cursor, &field)) {
        switch (field.number) {
        case PPROF_SAMPLE:
            reader->sample_count++;
            break;
        case PPROF_STRING:
            rc = add_string_ref(reader, &field);
            break;
        case PPROF_TIME:
        case PPROF_DURATION:
        case PPROF_PERIOD:
        case PPROF_PERIOD_TYPE:
            rc = read_single(reader, &field);
            break;
        default:
            break;
        }
    }
    if (rc == EF_OK && cursor.failed)
        rc = CORRUPT(reader, "not a profile, or damaged, within its %zu bytes", reader->len);
    return rc;
}

static ef_rc
add_type(struct reader *reader, struct field *message)
{
    struct ef_profile *profile = reader->profile;
    uint64_t type_index, unit_index;
    uint32_t type = 0, unit = 0;
    ef_rc rc = read_value_type(reader, message, &type_index, &unit_index);

    if (rc == EF_OK)
        rc = string_at(reader, type_index, "sample type", &type);
    if (rc == EF_OK)
        rc = string_at(reader, unit_index, "unit of a sample type", &unit);
    if (rc != EF_OK)
        return rc;
    if (type == 0)
        return CORRUPT(reader, "sample type %" PRIu32 " has no name", profile->type_count);
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (profile->types[i].type == type && profile->types[i].unit == unit)
            return several_profiles(reader, "a sample type");
    }
    return ef_profile_add_type(profile, ef_profile_string(profile, type),
                               ef_profile_string(profile, unit), reader->err);
}

static ef_rc
read_types(struct reader *reader)
{
    struct ef_cursor cursor = ef_cursor_of(reader->data, reader->len);
    struct field field;
    ef_rc rc = EF_OK;

    while (rc == EF_OK && next_of(&cursor, PPROF_SAMPLE_TYPE, &field))
        rc = add_type(reader, &field);
    if (rc == EF_OK && reader->profile->type_count == 0)
        rc = CORRUPT(reader, "no sample types: not a profile, or an empty one");
    /* Concatenated empty profiles have nothing else that gives them away. */
    if (rc == EF_OK && reader->sample_count == 0 && reader->empty_string_count > 1)
        rc = several_profiles(reader, "the string table");
    if (rc == EF_OK)
        rc = string_at(reader, reader->period_type_type, "period type",
                       &reader->profile->period_type.type);
    if (rc == EF_OK)
        rc = string_at(reader, reader->period_type_unit, "unit of the period type",
                       &reader->profile->period_type.unit);
    return rc;
}

static ef_rc
read_mapping(struct reader *reader, struct ef_cursor *cursor)
{
    struct ef_profile_mapping mapping = {0};
    uint64_t id = 0, file = 0, build_id = 0;
    struct field field;
    uint32_t number;
    ef_rc rc;

    while (next_member(cursor, MAPPING_HAS_INLINE, 0, &field)) {
        switch (field.number) {
        case MAPPING_ID:
            id = field.value;
            break;
        case MAPPING_START:
            mapping.start = field.value;
            break;
        case MAPPING_LIMIT:
            mapping.limit = field.value;
            break;
        case MAPPING_OFFSET:
            mapping.offset = field.value;
            break;
        case MAPPING_FILE:
            file = field.value;
            break;
        case MAPPING_BUILD_ID:
            build_id = field.value;
            break;
        default: /* What has been symbolised shows from the locations. */
            break;
        }
    }
    if (cursor->failed)
        return damaged(reader, "mapping", reader->mappings.count);
    if (id == 0)
        return EF_OK;
    rc = string_at(reader, file, "file of a mapping", &mapping.file);
    if (rc == EF_OK)
        rc = string_at(reader, build_id, "build id of a mapping", &mapping.build_id);
    if (rc == EF_OK)
        rc = ef_profile_add_mapping(reader->profile, &mapping, &number, reader->err);
    if (rc == EF_OK)
        rc = id_map_add(reader, &reader->mappings, id, number, "mapping");
    return rc;
}

/* Lines and columns that cannot be are unknown: writers put -1 for "none". */
static uint32_t
line_of(uint64_t value)
{
    return value <= INT32_MAX ? (uint32_t)value : 0;
}

static ef_rc
read_function(struct reader *reader, struct ef_cursor *cursor)
{
    struct ef_profile_function function = {0};
    uint64_t id = 0, name = 0, system_name = 0, file = 0;
    struct field field;
    uint32_t number;
    ef_rc rc;

    while (next_member(cursor, FUNCTION_START_LINE, 0, &field)) {
        switch (field.number) {
        case FUNCTION_ID:
            id = field.value;
            break;
        case FUNCTION_NAME:
            name = field.value;
            break;
        case FUNCTION_SYSTEM_NAME:
            system_name = field.value;
            break;
        case FUNCTION_FILE:
            file = field.value;
            break;
        default:
            function.start_line = line_of(field.value);
            break;
        }
    }
    if (cursor->failed)
        return damaged(reader, "function", reader->functions.count);
    if (id == 0)
        return EF_OK;
    rc = string_at(reader, name, "name of a function", &function.name);
    if (rc == EF_OK)
        rc = string_at(reader, system_name, "system name of a function", &function.system_name);
    if (rc == EF_OK)
        rc = string_at(reader, file, "file of a function", &function.file);
    if (rc != EF_OK)
        return rc;
    if (strcmp(ef_profile_string(reader->profile, function.name), EF_PROFILE_ANONYMOUS) == 0) {
        if (function.system_name == function.name)
            function.system_name = 0;
        function.name = 0;
    }
    rc = ef_profile_add_function(reader->profile, &function, &number, reader->err);
    if (rc == EF_OK)
        rc = id_map_add(reader, &reader->functions, id, number, "function");
    return rc;
}

static ef_rc
append_frame(struct reader *reader, const struct ef_profile_frame *frame)
{
    uint64_t max = (uint64_t)reader->limits->functions_max * LINES_PER_LOCATION;
    uint32_t id;
    ef_rc rc = ef_profile_add_frame(reader->profile, frame, &id, reader->err);

    if (rc != EF_OK)
        return rc;
    if (reader->frame_count >= max)
        return ef_err_set(reader->err, EF_ELIMIT, "pprof: more than %" PRIu64 " lines of locations",
                          max);
    if (!grow(&reader->frames, &reader->frame_cap, reader->frame_count, sizeof(*reader->frames)))
        return no_memory(reader);
    reader->frames[reader->frame_count++] = id;
    return EF_OK;
}

/* One line of a location is one frame: several of them are calls that the compiler inlined. */
static ef_rc
read_line(struct reader *reader, struct ef_cursor *cursor, struct ef_profile_frame frame)
{
    uint64_t function = 0;
    struct field field;

    while (next_member(cursor, LINE_COLUMN, 0, &field)) {
        if (field.number == LINE_FUNCTION)
            function = field.value;
        else if (field.number == LINE_LINE)
            frame.line = line_of(field.value);
        else
            frame.column = line_of(field.value);
    }
    if (cursor->failed)
        return damaged(reader, "line of location", reader->locations.count);
    if (function == 0)
        return EF_OK;
    frame.function = id_map_get(&reader->functions, function);
    if (frame.function == 0)
        return CORRUPT(reader, "a location refers to function %" PRIu64 ", which is not there",
                       function);
    return append_frame(reader, &frame);
}

static ef_rc
read_lines(struct reader *reader, struct ef_cursor cursor, const struct ef_profile_frame *frame)
{
    struct field field;
    ef_rc rc = EF_OK;

    while (rc == EF_OK && next_of(&cursor, LOCATION_LINE, &field))
        rc = read_line(reader, &field.bytes, *frame);
    return rc;
}

static ef_rc
append_unknown_frame(struct reader *reader)
{
    struct ef_profile_function function = {0};
    struct ef_profile_frame frame = {0};
    ef_rc rc = ef_profile_add_string(reader->profile, UNKNOWN_NAME, strlen(UNKNOWN_NAME),
                                     &function.name, reader->err);

    if (rc == EF_OK)
        rc = ef_profile_add_function(reader->profile, &function, &frame.function, reader->err);
    return rc == EF_OK ? append_frame(reader, &frame) : rc;
}

static ef_rc
read_location(struct reader *reader, struct ef_cursor *cursor)
{
    struct ef_cursor again = *cursor;
    struct location *location;
    uint64_t id = 0, mapping = 0, address = 0;
    struct ef_profile_frame frame = {0};
    struct field field;
    ef_rc rc;

    while (next_member(cursor, LOCATION_LINE, 1u << LOCATION_LINE, &field)) {
        if (field.number == LOCATION_ID)
            id = field.value;
        else if (field.number == LOCATION_MAPPING)
            mapping = field.value;
        else if (field.number == LOCATION_ADDRESS)
            address = field.value;
    }
    if (cursor->failed)
        return damaged(reader, "location", reader->locations.count);
    if (id == 0)
        return EF_OK;
    if (!grow(&reader->location_list, &reader->location_cap, reader->locations.count,
              sizeof(*reader->location_list)))
        return no_memory(reader);
    rc = id_map_add(reader, &reader->locations, id, reader->locations.count + 1, "location");
    if (rc != EF_OK)
        return rc;
    location = &reader->location_list[reader->locations.count - 1];
    location->first = reader->frame_count;
    frame.address = address;
    /* A mapping says something about an address only; else equal functions would differ by it. */
    frame.mapping = address != 0 ? id_map_get(&reader->mappings, mapping) : 0;
    rc = read_lines(reader, again, &frame);
    if (rc == EF_OK && reader->frame_count == location->first) {
        frame.mapping = id_map_get(&reader->mappings, mapping);
        rc = frame.address != 0 || frame.mapping != 0 ? append_frame(reader, &frame)
                                                      : append_unknown_frame(reader);
    }
    location->count = reader->frame_count - location->first;
    return rc;
}

/* Walks all messages of one field. */
static ef_rc
each_message(struct reader *reader, uint32_t number, const char *what,
             ef_rc (*read)(struct reader *reader, struct ef_cursor *cursor))
{
    struct ef_cursor cursor = ef_cursor_of(reader->data, reader->len);
    struct field field;
    ef_rc rc = EF_OK;

    for (uint64_t count = 0; rc == EF_OK && next_of(&cursor, number, &field); count++) {
        if (field.wire != EF_PB_BYTES)
            return damaged(reader, what, count);
        rc = read(reader, &field.bytes);
    }
    return rc;
}

struct sample {
    uint32_t depth; /* frames in reader->stack */
    uint32_t value_count;
    int64_t values[EF_PROFILE_TYPES_MAX];
};

static ef_rc
push_location(struct reader *reader, struct sample *sample, uint64_t id)
{
    uint32_t number = id_map_get(&reader->locations, id);
    const struct location *location;

    if (id == 0)
        return EF_OK;
    if (number == 0)
        return CORRUPT(reader,
                       "sample %" PRIu64 " refers to location %" PRIu64 ", which is not there",
                       reader->profile->samples, id);
    location = &reader->location_list[number - 1];
    if (location->count > EF_PROFILE_DEPTH_MAX - sample->depth)
        return ef_err_set(reader->err, EF_ELIMIT,
                          "pprof: sample %" PRIu64 " is deeper than %d frames",
                          reader->profile->samples, EF_PROFILE_DEPTH_MAX);
    for (uint32_t i = 0; i < location->count; i++)
        reader->stack[sample->depth++] = reader->frames[location->first + i];
    return EF_OK;
}

static ef_rc
push_value(struct reader *reader, struct sample *sample, uint64_t value)
{
    if (sample->value_count < EF_PROFILE_TYPES_MAX)
        sample->values[sample->value_count] = (int64_t)value;
    sample->value_count++;
    (void)reader;
    return EF_OK;
}

/* A repeated number: packed into bytes or one by one; both may be mixed. */
static ef_rc
each_number(struct reader *reader, struct sample *sample, struct field *field,
            ef_rc (*push)(struct reader *reader, struct sample *sample, uint64_t number))
{
    ef_rc rc = EF_OK;

    if (field->wire == EF_PB_VARINT)
        return push(reader, sample, field->value);
    if (field->wire != EF_PB_BYTES)
        return damaged(reader, "sample", reader->profile->samples);
    while (rc == EF_OK && field->bytes.at < field->bytes.end) {
        uint64_t number = ef_cursor_varint(&field->bytes);
        if (field->bytes.failed)
            return damaged(reader, "sample", reader->profile->samples);
        rc = push(reader, sample, number);
    }
    return rc;
}

/* Finds the node of the stack. Samples that follow each other mostly share the way from the root,
 * which then needs no look-up. */
static ef_rc
node_of_stack(struct reader *reader, uint32_t depth, uint32_t *ret_node)
{
    uint32_t node = 0, level = 0;
    ef_rc rc = EF_OK;

    while (level < depth && level < reader->path_len &&
           reader->path_frames[level] == reader->stack[depth - 1 - level])
        node = reader->path_nodes[level++];
    for (; level < depth && rc == EF_OK; level++) {
        uint32_t frame = reader->stack[depth - 1 - level];
        rc = ef_profile_add_node(reader->profile, node, frame, &node, reader->err);
        reader->path_frames[level] = frame;
        reader->path_nodes[level] = node;
    }
    reader->path_len = depth;
    *ret_node = node;
    return rc;
}

static ef_rc
read_sample(struct reader *reader, struct ef_cursor *cursor)
{
    struct ef_profile *profile = reader->profile;
    struct sample sample = {0};
    struct field field;
    uint32_t node = 0;
    ef_rc rc = EF_OK;

    while (rc == EF_OK && next_field(cursor, &field)) {
        if (field.number == SAMPLE_LOCATION)
            rc = each_number(reader, &sample, &field, push_location);
        else if (field.number == SAMPLE_VALUE)
            rc = each_number(reader, &sample, &field, push_value);
        else if (field.number == SAMPLE_LABEL)
            profile->labels_dropped++;
    }
    if (rc == EF_OK && cursor->failed)
        rc = damaged(reader, "sample", profile->samples);
    if (rc == EF_OK && sample.value_count != profile->type_count)
        rc = CORRUPT(reader,
                     "sample %" PRIu64 " has %" PRIu32 " values for %" PRIu32
                     " sample types; are these several profiles in one?",
                     profile->samples, sample.value_count, profile->type_count);
    if (rc == EF_OK)
        rc = node_of_stack(reader, sample.depth, &node);
    for (uint32_t i = 0; i < profile->type_count && rc == EF_OK; i++)
        rc = ef_profile_add_value(profile, node, i, sample.values[i], reader->err);
    profile->samples++;
    return rc;
}

static ef_rc
read_all(struct reader *reader)
{
    ef_rc rc = scan(reader);

    if (rc == EF_OK)
        rc = read_types(reader);
    if (rc == EF_OK)
        rc = each_message(reader, PPROF_MAPPING, "mapping", read_mapping);
    if (rc == EF_OK)
        rc = each_message(reader, PPROF_FUNCTION, "function", read_function);
    if (rc == EF_OK)
        rc = each_message(reader, PPROF_LOCATION, "location", read_location);
    if (rc == EF_OK)
        rc = each_message(reader, PPROF_SAMPLE, "sample", read_sample);
    return rc;
}

static void
id_map_init(struct id_map *map, uint32_t count_max)
{
    map->count_max = count_max;
    ef_map_init(&map->sparse, count_max);
}

static void
id_map_fini(struct id_map *map)
{
    free(map->dense);
    ef_map_fini(&map->sparse);
}

static ef_rc
read_plain(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
           struct ef_profile **ret_profile, struct ef_err *err)
{
    struct reader *reader = calloc(1, sizeof(*reader)); /* 24 kB: too much for a small stack */
    ef_rc rc;

    if (reader == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory while reading a pprof");
    *reader = (struct reader){.data = data, .len = len, .limits = limits, .err = err};
    id_map_init(&reader->mappings, limits->functions_max);
    id_map_init(&reader->functions, limits->functions_max);
    id_map_init(&reader->locations, limits->functions_max);
    rc = ef_profile_open(limits, &reader->profile, err);
    if (rc == EF_OK)
        rc = read_all(reader);
    if (rc == EF_OK) {
        *ret_profile = reader->profile;
        reader->profile = NULL; /* moved to the caller */
    }
    ef_profile_free(reader->profile);
    id_map_fini(&reader->mappings);
    id_map_fini(&reader->functions);
    id_map_fini(&reader->locations);
    free(reader->strings);
    free(reader->location_list);
    free(reader->frames);
    free(reader);
    return rc;
}

static bool
is_gzip(const uint8_t *data, size_t len)
{
    return len >= 2 && data[0] == 0x1f && data[1] == 0x8b;
}

ef_rc
ef_pprof_read(const uint8_t *data, size_t len, size_t bytes_max,
              const struct ef_profile_limits *limits, struct ef_profile **ret_profile,
              struct ef_err *err)
{
    struct ef_buf plain;
    ef_rc rc = EF_OK;

    if (bytes_max > UINT32_MAX)
        bytes_max = UINT32_MAX;
    ef_buf_init(&plain, bytes_max);
    if (len == 0)
        return ef_err_set(err, EF_ECORRUPT, "pprof: the file is empty");
    if (len > bytes_max)
        return ef_err_set(err, EF_ELIMIT, "pprof: more than %zu bytes", bytes_max);
    if (!is_gzip(data, len))
        return read_plain(data, len, limits, ret_profile, err);
    rc = ef_gzip_inflate(data, len, &plain, err);
    if (rc != EF_OK)
        ef_err_prefix(err, "pprof");
    else if (plain.len == 0)
        rc = ef_err_set(err, EF_ECORRUPT, "pprof: the gzip stream is empty");
    else
        rc = read_plain(plain.data, plain.len, limits, ret_profile, err);
    ef_buf_fini(&plain);
    return rc;
}

bool
ef_pprof_sniff(const uint8_t *data, size_t len)
{
    struct ef_cursor cursor = ef_cursor_of(data, len);
    struct field field;
    bool typed = false;

    if (is_gzip(data, len))
        return true;
    /* 64 fields tell text from protobuf; all top-level fields of a profile are under 32. */
    for (int i = 0; i < 64 && next_field(&cursor, &field); i++) {
        if (field.number > 32)
            return false;
        typed |= field.number == PPROF_SAMPLE_TYPE && field.wire == EF_PB_BYTES;
    }
    return typed && !cursor.failed;
}
