/*
 * The command `convert`: from one profile format to another, without a server.
 */
#include "collector/cli/cli.h"

#include <string.h>

#define SUFFIX_PATH_MAX 512 /* bytes of OUT that a message repeats */

/* The writable format whose ending the name has: ".json" belongs to one that cannot be read. */
static const struct ef_format_ops *
format_by_name(const char *path)
{
    const struct ef_format_ops *found = ef_format_guess(path, NULL, 0);
    size_t len = strlen(path);

    for (size_t i = 0; found == NULL && ef_format_at(i) != NULL; i++) {
        const struct ef_format_ops *format = ef_format_at(i);
        size_t suffix_len = strlen(format->suffix);
        if (len > suffix_len && strcmp(path + len - suffix_len, format->suffix) == 0)
            found = format;
    }
    return found != NULL && found->write != NULL ? found : NULL;
}

/* The format of OUT: by --to, otherwise by its name. NULL when said. */
static const struct ef_format_ops *
output_format(const struct ef_cli *cli, const char *path)
{
    const struct ef_format_ops *format;

    if (cli->values.to[0] != '\0') {
        format = ef_cli_find_format(cli->values.to);
        if (format != NULL && format->write == NULL) {
            ef_cli_say("%s can only be read", format->name);
            format = NULL;
        }
        return format;
    }
    format = strcmp(path, "-") == 0 ? NULL : format_by_name(path);
    if (format != NULL)
        return format;
    ef_cli_say("which format shall '%.*s' have? Its name does not tell; give --to, for example "
               "--to folded",
               SUFFIX_PATH_MAX, path);
    return NULL;
}

/* The format of IN by --from; *ret_format NULL means: to be told by name or content. */
static int
input_format(const struct ef_cli *cli, const struct ef_format_ops **ret_format)
{
    *ret_format = NULL;
    if (cli->values.from[0] == '\0')
        return EF_CLI_OK;
    *ret_format = ef_cli_find_format(cli->values.from);
    if (*ret_format == NULL)
        return EF_CLI_USAGE;
    if ((*ret_format)->read != NULL)
        return EF_CLI_OK;
    ef_cli_say("%s can only be written", (*ret_format)->name);
    return EF_CLI_USAGE;
}

static ef_rc
read_profile(const char *path, const struct ef_format_ops *format, struct ef_profile **ret_profile,
             struct ef_err *err)
{
    bool standard = strcmp(path, "-") == 0;
    struct ef_buf data;
    ef_rc rc = ef_cli_read_file(path, EF_FORMAT_INPUT_BYTES_MAX, &data, err);

    if (rc != EF_OK)
        return rc;
    if (format == NULL)
        format = ef_format_guess(standard ? NULL : path, data.data, data.len);
    rc = ef_format_read(format, NULL, data.data, data.len, &ef_profile_limits_default, ret_profile,
                        err);
    ef_buf_fini(&data);
    if (rc != EF_OK)
        ef_err_prefix(err, "'%.280s'", standard ? "standard input" : path);
    return rc;
}

static ef_rc
write_profile(struct ef_cli *cli, const char *path, const struct ef_format_ops *format,
              const struct ef_profile *profile, struct ef_err *err)
{
    struct ef_format_about about = {0};
    struct ef_buf data;
    ef_rc rc;

    ef_buf_init(&data, EF_FORMAT_OUTPUT_BYTES_MAX);
    rc = format->write(profile, &about, &data, err);
    if (rc == EF_OK)
        rc = ef_buf_check(&data, "the converted profile", err);
    if (rc == EF_OK && strcmp(path, "-") == 0)
        ef_buf_append(&cli->out, data.data, data.len);
    else if (rc == EF_OK)
        rc = ef_cli_write_file(path, data.data, data.len, err);
    ef_buf_fini(&data);
    return rc;
}

int
ef_cli_convert(struct ef_cli *cli)
{
    const char *in = cli->arguments[0], *out = cli->arguments[1];
    const struct ef_format_ops *from, *to;
    struct ef_profile *profile = NULL;
    struct ef_err err = {0};
    int code = input_format(cli, &from);

    if (code != EF_CLI_OK)
        return code;
    to = output_format(cli, out);
    if (to == NULL)
        return EF_CLI_USAGE;
    code = ef_cli_refuse_binary(cli, to, out, " or name a file");
    if (code != EF_CLI_OK)
        return code;
    if (read_profile(in, from, &profile, &err) != EF_OK ||
        write_profile(cli, out, to, profile, &err) != EF_OK) {
        ef_cli_say("%s", err.msg);
        code = EF_CLI_FAILED;
    } else if (profile->labels_dropped > 0) {
        ef_cli_say("labels of samples are not kept: %llu were left out",
                   (unsigned long long)profile->labels_dropped);
    }
    ef_profile_free(profile);
    return code;
}
