/*
 * Decides where option values come from and which wins. Must not know what they are for. Main
 * thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cyaml/cyaml.h>

#include "collector/daemon/daemon.h"

#define CONFIG_VALUE_BYTES_MAX (EF_OPT_STR_MAX - 1)

const struct ef_option ef_daemon_option_table[] = {
#define X(...) EF_OPTION_ROW(struct ef_daemon_options, __VA_ARGS__)
#include "collector/daemon/options.def"
#undef X
};
const size_t ef_daemon_option_count = EF_COUNT_OF(ef_daemon_option_table);

#define OPTION_COUNT EF_COUNT_OF(ef_daemon_option_table)

/* The first thing that the YAML reader complains about. */
struct complaint {
    char text[256];
};

static void EF_PRINTF(3, 0)
    note_complaint(cyaml_log_t level, void *arg, const char *fmt, va_list args)
{
    struct complaint *complaint = arg;

    (void)level;
    if (complaint->text[0] != '\0')
        return;
    vsnprintf(complaint->text, sizeof(complaint->text), fmt, args);
    complaint->text[strcspn(complaint->text, "\n")] = '\0';
}

/* Every option is a text that may be absent, so that all values are checked in one place. */
static void
make_schema(cyaml_schema_field_t fields[OPTION_COUNT + 1])
{
    memset(fields, 0, (OPTION_COUNT + 1) * sizeof(fields[0]));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        fields[i].key = ef_daemon_option_table[i].name;
        fields[i].data_offset = (uint32_t)(i * sizeof(char *));
        fields[i].value.type = CYAML_STRING;
        fields[i].value.flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL;
        fields[i].value.data_size = sizeof(char);
        fields[i].value.string.min = 0;
        fields[i].value.string.max = CONFIG_VALUE_BYTES_MAX;
    }
}

static ef_rc
apply_values(const char *path, char *const values[OPTION_COUNT], struct ef_daemon_options *options,
             struct ef_err *err)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        ef_rc rc = values[i] != NULL
                       ? ef_option_set(&ef_daemon_option_table[i], options, values[i], err)
                       : EF_OK;
        if (rc != EF_OK) {
            ef_err_prefix(err, "configuration '%s'", path);
            return rc;
        }
    }
    return EF_OK;
}

ef_rc
ef_daemon_read_config(const char *path, struct ef_daemon_options *options, struct ef_err *err)
{
    cyaml_schema_field_t fields[OPTION_COUNT + 1];
    const cyaml_schema_value_t schema = {.type = CYAML_MAPPING,
                                         .flags = CYAML_FLAG_POINTER,
                                         .data_size = OPTION_COUNT * sizeof(char *),
                                         .mapping = {.fields = fields}};
    struct complaint complaint = {""};
    const cyaml_config_t config = {.log_fn = note_complaint,
                                   .log_ctx = &complaint,
                                   .log_level = CYAML_LOG_ERROR,
                                   .mem_fn = cyaml_mem};
    struct ef_daemon_options changed = *options;
    cyaml_data_t *data = NULL;
    cyaml_err_t code;
    ef_rc rc;

    make_schema(fields);
    code = cyaml_load_file(path, &config, &schema, &data, NULL);
    if (code == CYAML_ERR_FILE_OPEN)
        return ef_err_errno(err, "cannot read the configuration '%s'", path);
    if (code != CYAML_OK)
        return ef_err_set(err, EF_EUSAGE,
                          "configuration '%s': %s; it holds lines 'name: value' with the names of "
                          "--print options",
                          path, complaint.text[0] != '\0' ? complaint.text : cyaml_strerror(code));
    rc = apply_values(path, data, &changed, err);
    cyaml_free(&config, &schema, data, 0);
    if (rc == EF_OK)
        *options = changed;
    return rc;
}

/* Parses a copy of argv: parsing takes the flags out, and it is done twice. */
static ef_rc
parse_flags(int argc, char *const *argv, struct ef_daemon_options *options, bool *ret_help,
            bool *ret_version, int *ret_rest, struct ef_err *err)
{
    char **copy = calloc((size_t)argc + 1, sizeof(char *));
    ef_rc rc;

    if (copy == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the command line");
    memcpy(copy, argv, (size_t)argc * sizeof(char *));
    rc = ef_option_parse_argv(ef_daemon_option_table, OPTION_COUNT, options, &argc, copy, ret_help,
                              ret_version, err);
    if (rc == EF_OK && argc > 1)
        rc = ef_err_set(err, EF_EUSAGE, "'%.64s' is not an option; --help lists them", copy[1]);
    *ret_rest = argc;
    free(copy);
    return rc;
}

ef_rc
ef_daemon_configure(int *argc, char **argv, struct ef_daemon_options *ret_options, bool *ret_help,
                    bool *ret_version, struct ef_err *err)
{
    struct ef_daemon_options options, first;
    int rest = 0;
    ef_rc rc;

    memset(&options, 0, sizeof(options));
    ef_option_defaults(ef_daemon_option_table, OPTION_COUNT, &options);
    first = options;
    rc = ef_option_parse_env(ef_daemon_option_table, OPTION_COUNT, &first, err);
    if (rc == EF_OK) /* once to know the configuration file, and to complain early */
        rc = parse_flags(*argc, argv, &first, ret_help, ret_version, &rest, err);
    if (rc == EF_OK && first.config[0] != '\0')
        rc = ef_daemon_read_config(first.config, &options, err);
    if (rc == EF_OK)
        rc = ef_option_parse_env(ef_daemon_option_table, OPTION_COUNT, &options, err);
    if (rc == EF_OK)
        rc = parse_flags(*argc, argv, &options, ret_help, ret_version, &rest, err);
    if (rc != EF_OK) { /* wherever it stands: what was given is wrong */
        if (err != NULL)
            err->rc = EF_EUSAGE;
        return EF_EUSAGE;
    }
    *argc = rest;
    *ret_options = options;
    return EF_OK;
}
