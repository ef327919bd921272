/*
 * Decides how option texts become values, what --help looks like, and how unknown names are
 * answered. Main thread.
 */
#include "proto/base/option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"
#include "proto/base/text.h"
#include "proto/base/time.h"

ef_rc
ef_size_parse(const char *text, uint64_t *ret_bytes, struct ef_err *err)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {{"", 1},           {"B", 1},           {"kB", 1000},      {"KB", 1000},
                 {"MB", 1000000},   {"GB", 1000000000}, {"KiB", 1u << 10}, {"MiB", 1u << 20},
                 {"GiB", 1u << 30}, {"k", 1u << 10},    {"K", 1u << 10},   {"M", 1u << 20},
                 {"G", 1u << 30}};
    const char *end = text;
    uint64_t number, bytes;

    if (ef_u64_read(&end, 10, &number)) {
        for (size_t i = 0; i < EF_COUNT_OF(units); i++) {
            if (strcmp(end, units[i].suffix) == 0 &&
                !__builtin_mul_overflow(number, units[i].factor, &bytes)) {
                *ret_bytes = bytes;
                return EF_OK;
            }
        }
    }
    return ef_err_set(err, EF_EINVAL, "'%.64s' is not a size; write for example 64MiB or 4096",
                      text);
}

static ef_rc
parse_number(const struct ef_option *option, const char *text, double *ret_number,
             uint64_t *ret_whole, struct ef_err *err)
{
    ef_span_ns span;
    const char *next = text;
    char *end;
    ef_rc rc = EF_OK;

    switch (option->type) {
    case EF_OPT_SIZE:
        rc = ef_size_parse(text, ret_whole, err);
        break;
    case EF_OPT_SPAN_MS:
        rc = ef_span_parse(text, &span, err);
        if (rc == EF_OK)
            *ret_whole = (uint64_t)(span.ns / EF_NS_PER_MS);
        break;
    case EF_OPT_U64:
        if (!ef_u64_read(&next, 10, ret_whole) || *next != '\0')
            rc = ef_err_set(err, EF_EINVAL, "'%.64s' is not a whole number", text);
        break;
    default:
        errno = 0;
        *ret_number = strtod(text, &end);
        if (end == text || *end != '\0' || errno != 0 || !isfinite(*ret_number))
            rc = ef_err_set(err, EF_EINVAL, "'%.64s' is not a number", text);
        return rc;
    }
    if (rc == EF_OK)
        *ret_number = (double)*ret_whole;
    return rc;
}

static ef_rc
parse_bool(const char *text, bool *ret, struct ef_err *err)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "yes") == 0 || strcmp(text, "on") == 0 ||
        strcmp(text, "1") == 0)
        *ret = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "no") == 0 || strcmp(text, "off") == 0 ||
             strcmp(text, "0") == 0)
        *ret = false;
    else
        return ef_err_set(err, EF_EINVAL, "'%.64s' is neither true nor false", text);
    return EF_OK;
}

ef_rc
ef_option_set(const struct ef_option *option, void *holder, const char *text, struct ef_err *err)
{
    char *field = (char *)holder + option->offset;
    double number = 0;
    uint64_t whole = 0;
    bool truth = false;
    ef_rc rc;

    if (option->type == EF_OPT_STR) {
        size_t len = strlen(text);
        if (len >= EF_OPT_STR_MAX || (double)len < option->min ||
            (option->max > 0 && (double)len > option->max))
            return ef_err_set(err, EF_EINVAL, "option '%s': a text of %zu bytes is too %s",
                              option->name, len, (double)len < option->min ? "short" : "long");
        memcpy(field, text, len + 1);
        return EF_OK;
    }
    rc = option->type == EF_OPT_BOOL ? parse_bool(text, &truth, err)
                                     : parse_number(option, text, &number, &whole, err);
    if (rc == EF_OK && option->type != EF_OPT_BOOL &&
        (number < option->min || number > option->max))
        rc = ef_err_set(err, EF_EINVAL, "'%.64s' is outside %.15g to %.15g %s", text, option->min,
                        option->max, option->unit);
    if (rc != EF_OK) {
        ef_err_prefix(err, "option '%s'", option->name);
        return rc;
    }
    if (option->type == EF_OPT_BOOL)
        memcpy(field, &truth, sizeof(truth));
    else if (option->type == EF_OPT_F64)
        memcpy(field, &number, sizeof(number));
    else
        memcpy(field, &whole, sizeof(whole));
    return EF_OK;
}

void
ef_option_defaults(const struct ef_option *table, size_t count, void *holder)
{
    for (size_t i = 0; i < count; i++)
        EF_ASSERT(ef_option_set(&table[i], holder, table[i].default_text, NULL) == EF_OK);
}

/* The flag of an option: underscores become hyphens; a span's "-ms" is not said, its value carries
 * the unit. */
static void
flag_name(const struct ef_option *option, bool short_form, char *buf, size_t len)
{
    snprintf(buf, len, "%s", option->name);
    for (char *at = buf; *at != '\0'; at++) {
        if (*at == '_')
            *at = '-';
    }
    if (short_form && option->type == EF_OPT_SPAN_MS && strlen(buf) > 3 &&
        strcmp(buf + strlen(buf) - 3, "-ms") == 0)
        buf[strlen(buf) - 3] = '\0';
}

const struct ef_option *
ef_option_find(const struct ef_option *table, size_t count, const char *name)
{
    char flag[64];

    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
        flag_name(&table[i], false, flag, sizeof(flag));
        if (strcmp(flag, name) == 0)
            return &table[i];
        flag_name(&table[i], true, flag, sizeof(flag));
        if (strcmp(flag, name) == 0)
            return &table[i];
    }
    return NULL;
}

static size_t
edit_distance(const char *a, const char *b)
{
    size_t row[64], la = strlen(a), lb = strlen(b);

    if (la >= EF_COUNT_OF(row) || lb >= EF_COUNT_OF(row))
        return SIZE_MAX;
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[lb];
}

const char *
ef_nearest_word(const char *word, const char *const *words, size_t count)
{
    const char *best = NULL;
    size_t best_distance = 4; /* Three typing errors are still recognisable; chosen. */

    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, words[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = words[i];
        }
    }
    return best;
}

static ef_rc
unknown_flag(const struct ef_option *table, size_t count, const char *name, struct ef_err *err)
{
    char best[64] = "";
    size_t best_distance = 4;

    for (size_t i = 0; i < count; i++) {
        char flag[64];
        size_t distance;
        flag_name(&table[i], true, flag, sizeof(flag));
        distance = edit_distance(name, flag);
        if (distance < best_distance) {
            best_distance = distance;
            memcpy(best, flag, sizeof(best));
        }
    }
    if (best[0] != '\0')
        return ef_err_set(err, EF_EUSAGE, "there is no option '--%.64s'; do you mean '--%s'?", name,
                          best);
    return ef_err_set(err, EF_EUSAGE, "there is no option '--%.64s'; --help lists them", name);
}

struct flag_word {
    char name[64];
    const char *value; /* after '=', or NULL */
};

static bool
split_flag(const char *word, struct flag_word *ret)
{
    const char *name = word + 2;
    const char *equal = strchr(name, '=');
    size_t len = equal != NULL ? (size_t)(equal - name) : strlen(name);

    if (len >= sizeof(ret->name))
        return false;
    memcpy(ret->name, name, len);
    ret->name[len] = '\0';
    ret->value = equal != NULL ? equal + 1 : NULL;
    return true;
}

static ef_rc
take_flag(const struct ef_option *table, size_t count, void *holder, const char *word,
          const char *next, bool *ret_used_next, struct ef_err *err)
{
    struct flag_word flag;
    const struct ef_option *option;
    ef_rc rc;

    *ret_used_next = false;
    if (!split_flag(word, &flag))
        return ef_err_set(err, EF_EUSAGE, "'%.64s' is not an option", word);
    option = ef_option_find(table, count, flag.name);
    if (option == NULL && strncmp(flag.name, "no-", 3) == 0 && flag.value == NULL) {
        option = ef_option_find(table, count, flag.name + 3);
        if (option != NULL && option->type == EF_OPT_BOOL)
            return ef_option_set(option, holder, "false", err);
        option = NULL;
    }
    if (option == NULL)
        return unknown_flag(table, count, flag.name, err);
    if (flag.value == NULL && option->type == EF_OPT_BOOL)
        return ef_option_set(option, holder, "true", err);
    if (flag.value == NULL) {
        if (next == NULL)
            return ef_err_set(err, EF_EUSAGE, "option '--%s' needs a value", flag.name);
        flag.value = next;
        *ret_used_next = true;
    }
    rc = ef_option_set(option, holder, flag.value, err);
    if (rc != EF_OK && err != NULL)
        err->rc = EF_EUSAGE;
    return rc != EF_OK ? EF_EUSAGE : EF_OK;
}

ef_rc
ef_option_parse_argv(const struct ef_option *table, size_t count, void *holder, int *argc,
                     char **argv, bool *ret_help, bool *ret_version, struct ef_err *err)
{
    int kept = 1;
    bool words_only = false;

    *ret_help = *ret_version = false;
    for (int i = 1; i < *argc; i++) {
        const char *next = i + 1 < *argc ? argv[i + 1] : NULL;
        bool used_next = false;
        ef_rc rc = EF_OK;
        if (words_only || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[kept++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            words_only = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *ret_help = true;
        } else if (strcmp(argv[i], "--version") == 0 &&
                   ef_option_find(table, count, "version") == NULL) {
            *ret_version = true;
        } else if (argv[i][1] == '-') {
            rc = take_flag(table, count, holder, argv[i], next, &used_next, err);
        } else if (strncmp(argv[i], "-o", 2) == 0 &&
                   ef_option_find(table, count, "output") != NULL) {
            const char *value = argv[i][2] != '\0' ? argv[i] + 2 : next;
            used_next = argv[i][2] == '\0';
            if (value == NULL)
                return ef_err_set(err, EF_EUSAGE, "option '-o' needs a file name");
            rc = ef_option_set(ef_option_find(table, count, "output"), holder, value, err);
        } else {
            return ef_err_set(err, EF_EUSAGE, "there is no option '%.64s'; --help lists them",
                              argv[i]);
        }
        if (rc != EF_OK)
            return rc;
        i += used_next;
    }
    *argc = kept;
    argv[kept] = NULL;
    return EF_OK;
}

ef_rc
ef_option_parse_env(const struct ef_option *table, size_t count, void *holder, struct ef_err *err)
{
    for (size_t i = 0; i < count; i++) {
        char name[96] = "EVERFLAME_";
        size_t len = strlen(name);
        const char *value;
        for (const char *at = table[i].name; *at != '\0' && len + 1 < sizeof(name); at++)
            name[len++] = (char)toupper((unsigned char)*at);
        name[len] = '\0';
        value = getenv(name);
        if (value != NULL && *value != '\0') {
            ef_rc rc = ef_option_set(&table[i], holder, value, err);
            if (rc != EF_OK) {
                ef_err_prefix(err, "environment variable %s", name);
                return rc;
            }
        }
    }
    return EF_OK;
}

void
ef_option_help(const struct ef_option *table, size_t count, FILE *out)
{
    for (size_t i = 0; i < count; i++) {
        static const char *const kinds[] = {"=N", "=SIZE", "=TIME", "=N", "", "=TEXT"};
        char flag[64], left[96];
        flag_name(&table[i], true, flag, sizeof(flag));
        snprintf(left, sizeof(left), "--%s%s", flag, kinds[table[i].type]);
        fprintf(out, "  %-28s %s", left, table[i].sentence);
        if (table[i].default_text[0] != '\0' && table[i].type != EF_OPT_BOOL)
            fprintf(out, " [%s]", table[i].default_text);
        fputc('\n', out);
    }
}

void
ef_option_reference(const struct ef_option *table, size_t count, struct ef_buf *out)
{
    ef_buf_append_str(
        out, "| Option | Default | Range | Change | Meaning |\n| --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < count; i++) {
        char range[96] = "";
        if (table[i].type != EF_OPT_BOOL && table[i].type != EF_OPT_STR)
            snprintf(range, sizeof(range), "%.15g to %.15g %s", table[i].min, table[i].max,
                     table[i].unit);
        ef_buf_printf(out, "| `%s` | %s | %s | %s | %s |\n", table[i].name,
                      table[i].default_text[0] != '\0' ? table[i].default_text : "(none)", range,
                      table[i].reload == EF_OPT_LIVE ? "live" : "restart", table[i].sentence);
    }
}
