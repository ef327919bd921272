/*
 * Options declared once in a table (X-macro file `options.def` of a program), from which the
 * struct, parsing of flags, environment and file, --help and the reference are made.
 *
 * A table line:  X(field, type, unit, min, max, default, reload, "sentence.")
 *   field    C name with its unit, for example flush_interval_ms; the flag is --flush-interval-ms,
 * or --flush-interval 15s for EF_OPT_SPAN_MS (the unit is optional there), the file key is the
 * field name type     EF_OPT_U64, EF_OPT_SIZE (bytes; "64MiB"), EF_OPT_SPAN_MS (milliseconds;
 * "90s"), EF_OPT_F64, EF_OPT_BOOL, EF_OPT_STR min,max  bounds of the number; for EF_OPT_STR the
 * length default  text, parsed like a given value; "" for an empty text reload   EF_OPT_LIVE or
 * EF_OPT_RESTART
 *
 * Declaring:
 *   struct my_options {
 *   #define X EF_OPTION_FIELD
 *   #include ".../options.def"
 *   #undef X
 *   };
 *   static const struct ef_option my_table[] = {
 *   #define X(...) EF_OPTION_ROW(struct my_options, __VA_ARGS__)
 *   #include ".../options.def"
 *   #undef X
 *   };
 * Checking a value has no side effect. Not thread-safe.
 */
#ifndef PROTO_BASE_OPTION_H
#define PROTO_BASE_OPTION_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

#include <stddef.h>
#include <stdio.h>

#define EF_OPT_STR_MAX 512 /* bytes of a text option with its NUL */

enum ef_option_type {
    EF_OPT_U64,
    EF_OPT_SIZE,
    EF_OPT_SPAN_MS,
    EF_OPT_F64,
    EF_OPT_BOOL,
    EF_OPT_STR
};
enum ef_option_reload { EF_OPT_LIVE, EF_OPT_RESTART };

struct ef_option {
    const char *name;
    enum ef_option_type type;
    enum ef_option_reload reload; /* beside the other small one: no padding */
    const char *unit;
    double min;
    double max;
    const char *default_text;
    const char *sentence;
    size_t offset;
};

#define EF_OPTION_FIELD_EF_OPT_U64(field) uint64_t field;
#define EF_OPTION_FIELD_EF_OPT_SIZE(field) uint64_t field;
#define EF_OPTION_FIELD_EF_OPT_SPAN_MS(field) uint64_t field;
#define EF_OPTION_FIELD_EF_OPT_F64(field) double field;
#define EF_OPTION_FIELD_EF_OPT_BOOL(field) bool field;
#define EF_OPTION_FIELD_EF_OPT_STR(field) char field[EF_OPT_STR_MAX];
#define EF_OPTION_FIELD(field, type, ...) EF_OPTION_FIELD_##type(field)
#define EF_OPTION_ROW(holder, field, type, unit, min, max, default_text, reload, sentence)         \
    {#field, type, reload, unit, min, max, default_text, sentence, offsetof(holder, field)},

/* Sets every option to its default. A default that its own table refuses is our bug (asserted). */
void ef_option_defaults(const struct ef_option *table, size_t count, void *holder);
/* Finds by file key ("flush_interval_ms") or flag name ("flush-interval-ms", "flush-interval" for
 * spans). NULL if unknown. */
const struct ef_option *ef_option_find(const struct ef_option *table, size_t count,
                                       const char *name);
/* Checks and stores one value. The holder is untouched on failure. */
EF_MUST_USE ef_rc ef_option_set(const struct ef_option *option, void *holder, const char *text,
                                struct ef_err *err);
/*
 * Takes the --flags out of argv (forms --a=b, --a b, --bool, --no-bool; "--" ends them; "-o V" for
 * an option named `output`), leaving the positional words in *argc/argv (argv[0] stays). EF_EUSAGE
 * with the nearest name for an unknown one.
 * --help and --version are left to the caller: *ret_help / *ret_version say whether they were
 * there.
 */
EF_MUST_USE ef_rc ef_option_parse_argv(const struct ef_option *table, size_t count, void *holder,
                                       int *argc, char **argv, bool *ret_help, bool *ret_version,
                                       struct ef_err *err);
/* Reads EVERFLAME_<NAME> from the environment for every option of the table. */
EF_MUST_USE ef_rc ef_option_parse_env(const struct ef_option *table, size_t count, void *holder,
                                      struct ef_err *err);
/* Prints the flags, one or two lines each, for --help. */
void ef_option_help(const struct ef_option *table, size_t count, FILE *out);
/* Appends a Markdown table of the options (ops/reference). */
void ef_option_reference(const struct ef_option *table, size_t count, struct ef_buf *out);
/* The word of `words` nearest to `word` (edit distance at most 3), or NULL. */
const char *ef_nearest_word(const char *word, const char *const *words, size_t count);
/* Parses "10MiB", "4kB", "4096" (bytes). */
EF_MUST_USE ef_rc ef_size_parse(const char *text, uint64_t *ret_bytes, struct ef_err *err);

#endif
