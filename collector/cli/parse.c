/*
 * Decides what the flags of a command mean together: defaults, environment, repeated options,
 * values that must make sense before a server is asked. Main thread.
 */
#include "collector/cli/cli.h"

#include <string.h>

#include "proto/base/time.h"

/* The options that the environment may set; a variable like EVERFLAME_VERSION may well be there
 * for another purpose. */
static const char *const environment_names[] = {"url", "worker_id"};
static const char *const profile_types[] = {"cpu", "alloc", "heap", "inuse", "wall"};

/* Whether this word is an option that takes the next word as its value. */
static bool
takes_next(const struct ef_option *options, size_t option_count, const char *word)
{
    const struct ef_option *option = NULL;

    if (strncmp(word, "--", 2) == 0 && strchr(word, '=') == NULL)
        option = ef_option_find(options, option_count, word + 2);
    else if (strcmp(word, "-o") == 0)
        option = ef_option_find(options, option_count, "output");
    return option != NULL && option->type != EF_OPT_BOOL;
}

static ef_rc
list_add(const struct ef_option *option, void *holder, const char *value, struct ef_cli_list *list,
         struct ef_err *err)
{
    if (value == NULL || *value == '\0')
        return ef_err_set(err, EF_EUSAGE, "option '--%s' needs a value", option->name);
    if (list->count == EF_CLI_LIST_MAX)
        return ef_err_set(err, EF_EUSAGE, "option '--%s' may be given at most %d times",
                          option->name, EF_CLI_LIST_MAX);
    if (ef_option_set(option, holder, value, err) != EF_OK)
        return EF_EUSAGE;
    list->items[list->count++] = value;
    return EF_OK;
}

ef_rc
ef_cli_take_repeated(const struct ef_option *options, size_t option_count, const char *name,
                     void *holder, int *argc, char **argv, struct ef_cli_list *list,
                     struct ef_err *err)
{
    const struct ef_option *option = ef_option_find(options, option_count, name);
    int kept = 1;
    int i = 1;

    if (option == NULL)
        return EF_OK;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        const char *value = NULL;
        size_t len = strlen(name);
        if (strncmp(word, "--", 2) != 0 || strncmp(word + 2, name, len) != 0 ||
            (word[2 + len] != '\0' && word[2 + len] != '=')) {
            argv[kept++] = argv[i];
            if (takes_next(options, option_count, word) && i + 1 < *argc)
                argv[kept++] = argv[++i];
            continue;
        }
        if (word[2 + len] == '=')
            value = word + 2 + len + 1;
        else if (i + 1 < *argc)
            value = argv[++i];
        ef_rc rc = list_add(option, holder, value, list, err);
        if (rc != EF_OK)
            return rc;
    }
    for (; i < *argc; i++)
        argv[kept++] = argv[i];
    *argc = kept;
    argv[kept] = NULL;
    return EF_OK;
}

static ef_rc
parse_environment(struct ef_cli *cli, struct ef_err *err)
{
    const struct ef_cli_command *command = cli->command;

    for (size_t i = 0; i < EF_COUNT_OF(environment_names); i++) {
        const struct ef_option *option =
            ef_option_find(command->options, command->option_count, environment_names[i]);
        if (option != NULL && ef_option_parse_env(option, 1, &cli->values, err) != EF_OK)
            return EF_EUSAGE;
    }
    return EF_OK;
}

ef_rc
ef_cli_parse(struct ef_cli *cli, int argc, char **argv, bool *ret_help, bool *ret_version,
             struct ef_err *err)
{
    const struct ef_cli_command *command = cli->command;
    ef_rc rc;

    ef_option_defaults(command->options, command->option_count, &cli->values);
    rc = parse_environment(cli, err);
    if (rc == EF_OK)
        rc = ef_cli_take_repeated(command->options, command->option_count, "version", &cli->values,
                                  &argc, argv, &cli->versions, err);
    if (rc == EF_OK)
        rc = ef_option_parse_argv(command->options, command->option_count, &cli->values, &argc,
                                  argv, ret_help, ret_version, err);
    if (rc != EF_OK)
        return rc;
    cli->argument_count = argc - 1;
    cli->arguments = argv + 1;
    if (*ret_help || *ret_version)
        return EF_OK;
    if (cli->argument_count < command->argument_count_min)
        return ef_err_set(err, EF_EUSAGE, "'%s' needs %s", command->words, command->arguments);
    if (cli->argument_count > command->argument_count_max)
        return ef_err_set(err, EF_EUSAGE, "'%.64s' is one word too many for '%s'",
                          cli->arguments[command->argument_count_max], command->words);
    return EF_OK;
}

int
ef_cli_need_worker(const struct ef_cli *cli)
{
    if (cli->values.worker_id[0] != '\0')
        return EF_CLI_OK;
    return ef_cli_say_usage(cli->command,
                            "which worker? Give --worker-id or set EVERFLAME_WORKER_ID; "
                            "'everflame workers list' shows them");
}

int
ef_cli_check_type(const struct ef_cli *cli)
{
    const char *type = cli->values.profile_type;
    const char *nearest;

    for (size_t i = 0; i < EF_COUNT_OF(profile_types); i++) {
        if (strcmp(type, profile_types[i]) == 0)
            return EF_CLI_OK;
    }
    nearest = ef_nearest_word(type, profile_types, EF_COUNT_OF(profile_types));
    if (nearest != NULL && type[0] != '\0')
        return ef_cli_say_usage(cli->command, "'%s' is not a profile type; do you mean '%s'?", type,
                                nearest);
    return ef_cli_say_usage(
        cli->command, "'%s' is not a profile type; there are cpu, alloc (heap), inuse, wall", type);
}

int
ef_cli_check_range(const struct ef_cli *cli)
{
    ef_wall_ns now = ef_wall_now(), from, to;
    struct ef_err err = {0};

    if (ef_wall_parse(cli->values.from, now, &from, &err) != EF_OK)
        return ef_cli_say_usage(cli->command, "--from: %s", err.msg);
    if (ef_wall_parse(cli->values.to, now, &to, &err) != EF_OK)
        return ef_cli_say_usage(cli->command, "--to: %s", err.msg);
    if (from.ns >= to.ns)
        return ef_cli_say_usage(cli->command, "--from (%s) is not before --to (%s)",
                                cli->values.from, cli->values.to);
    return EF_CLI_OK;
}

const struct ef_format_ops *
ef_cli_find_format(const char *name)
{
    const struct ef_format_ops *format = ef_format_find(name);
    const char *names[16];
    char list[256] = "";
    size_t count = 0;
    const char *nearest;

    if (format != NULL)
        return format;
    for (; count < EF_COUNT_OF(names) && ef_format_at(count) != NULL; count++) {
        names[count] = ef_format_at(count)->name;
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", count > 0 ? ", " : "",
                 names[count]);
    }
    nearest = ef_nearest_word(name, names, count);
    if (nearest != NULL && *name != '\0')
        ef_cli_say("there is no format '%.32s'; do you mean '%s'?", name, nearest);
    else
        ef_cli_say("there is no format '%.32s'; there are %s", name, list);
    return NULL;
}
