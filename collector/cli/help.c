/*
 * Decides how the tables of commands and options look as help, as reference and as completions of
 * shells. Nothing about a command is written here. Main thread.
 */
#include "collector/cli/cli.h"

#include <stdio.h>
#include <string.h>

static const char *const profile_type_values = "cpu alloc heap inuse wall";

const char *
ef_cli_flag_name(const struct ef_option *option, char *buf, size_t len)
{
    size_t name_len = strlen(option->name);

    /* A span's value carries its unit, so the flag does not. */
    if (option->type == EF_OPT_SPAN_MS && name_len > 3 &&
        strcmp(option->name + name_len - 3, "_ms") == 0)
        name_len -= 3;
    snprintf(buf, len, "%.*s", (int)name_len, option->name);
    for (char *at = buf; *at != '\0'; at++) {
        if (*at == '_')
            *at = '-';
    }
    return buf;
}

#define HELP_WIDTH 100 /* columns */
#define HELP_INDENT 25 /* where sentences begin */

/* Appends words from column HELP_INDENT on, broken before HELP_WIDTH, and ends the line. */
static void
append_wrapped(struct ef_buf *out, const char *text)
{
    size_t column = HELP_INDENT;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");
        if (column > HELP_INDENT && column + 1 + len > HELP_WIDTH) {
            ef_buf_printf(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        } else if (column > HELP_INDENT) {
            ef_buf_put_u8(out, ' ');
            column++;
        }
        ef_buf_append(out, text, len);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    ef_buf_append_str(out, "\n");
}

static void
option_line(struct ef_buf *out, const struct ef_option *option)
{
    static const char *const values[] = {"N", "SIZE", "SPAN", "N", NULL, "TEXT"};
    char flag[64], left[96], sentence[512];
    bool shows_default = option->type != EF_OPT_BOOL && option->default_text[0] != '\0' &&
                         strcmp(option->default_text, "0") != 0;

    ef_cli_flag_name(option, flag, sizeof(flag));
    if (option->type == EF_OPT_BOOL)
        snprintf(left, sizeof(left), "--%s", flag);
    else
        snprintf(left, sizeof(left), "--%s %s", flag, values[option->type]);
    snprintf(sentence, sizeof(sentence), "%s%s%s%s", option->sentence, shows_default ? " [" : "",
             shows_default ? option->default_text : "", shows_default ? "]" : "");
    ef_buf_printf(out, "  %-22s ", left);
    append_wrapped(out, sentence);
}

static void
usage_line(struct ef_buf *out, const struct ef_cli_command *command)
{
    ef_buf_printf(out, "everflame %s", command->words);
    if (command->arguments[0] != '\0')
        ef_buf_printf(out, " %s", command->arguments);
    if (command->options_shown && command->option_count > 0)
        ef_buf_append_str(out, " [options]");
    ef_buf_append_str(out, "\n");
}

static void
examples(struct ef_buf *out, const struct ef_cli_command *command)
{
    const char *at = command->examples;

    while (*at != '\0') {
        size_t len = strcspn(at, "\n");
        ef_buf_printf(out, "  %.*s\n", (int)len, at);
        at += len + (at[len] == '\n');
    }
}

void
ef_cli_help_command(struct ef_buf *out, const struct ef_cli_command *command)
{
    ef_buf_append_str(out, "Usage: ");
    usage_line(out, command);
    ef_buf_printf(out, "\n%s\n", command->sentence);
    if (command->options_shown && command->option_count > 0) {
        ef_buf_append_str(out, "\nOptions:\n");
        for (size_t i = 0; i < command->option_count; i++)
            option_line(out, &command->options[i]);
    }
    ef_buf_append_str(out, "\nExamples:\n");
    examples(out, command);
}

static void
command_line(struct ef_buf *out, const struct ef_cli_command *command)
{
    ef_buf_printf(out, "  %-22s ", command->words);
    append_wrapped(out, command->sentence);
}

static const char exit_codes[] =
    "Exit codes: 0 good; 1 failed; 2 wrong usage; 3 not found, or nothing is kept of the range;\n"
    "4 nothing was sampled; 5 not authenticated; 6 the collector cannot be reached; 7 asked too\n"
    "often; 130 interrupted.\n";

void
ef_cli_help_all(struct ef_buf *out)
{
    ef_buf_append_str(out, "Usage: everflame COMMAND [options]\n\nCommands:\n");
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++)
        command_line(out, ef_cli_command_at(i));
    ef_buf_printf(out, "\n'everflame help COMMAND' explains a command.\n\n%s", exit_codes);
}

void
ef_cli_help_group(struct ef_buf *out, int argc, char *const *argv, int word_count)
{
    char prefix[128] = "";

    for (int i = 0; i < word_count && i < argc; i++)
        snprintf(prefix + strlen(prefix), sizeof(prefix) - strlen(prefix), "%s ", argv[i]);
    ef_buf_printf(out, "Usage: everflame %sCOMMAND [options]\n\nCommands:\n", prefix);
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++) {
        if (strncmp(ef_cli_command_at(i)->words, prefix, strlen(prefix)) == 0)
            command_line(out, ef_cli_command_at(i));
    }
}

void
ef_cli_help_markdown(struct ef_buf *out)
{
    ef_buf_printf(out,
                  "# The command line program `everflame`\n\n"
                  "Made by `everflame help --markdown`; do not edit.\n\n"
                  "Data go to standard output, words to standard error. An option comes before an "
                  "environment\nvariable, that before the default.\n\n%s",
                  exit_codes);
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++) {
        const struct ef_cli_command *command = ef_cli_command_at(i);
        ef_buf_printf(out, "\n## everflame %s\n\n```text\n", command->words);
        ef_cli_help_command(out, command);
        ef_buf_append_str(out, "```\n");
    }
}

/* The values that can be listed for an option, separated by blanks; "" when any text may stand. */
static void
option_values(struct ef_buf *out, const struct ef_cli_command *command,
              const struct ef_option *option)
{
    bool formats = strcmp(option->name, "format") == 0 ||
                   (strcmp(command->words, "convert") == 0 &&
                    (strcmp(option->name, "from") == 0 || strcmp(option->name, "to") == 0));

    if (strcmp(option->name, "profile_type") == 0)
        ef_buf_append_str(out, profile_type_values);
    for (size_t i = 0; formats && ef_format_at(i) != NULL; i++)
        ef_buf_printf(out, "%s%s", i > 0 ? " " : "", ef_format_at(i)->name);
}

static void
bash_command(struct ef_buf *out, const struct ef_cli_command *command)
{
    char flag[64];

    ef_buf_printf(out, "    '%s'*)\n        words='--help", command->words);
    for (size_t i = 0; command->options_shown && i < command->option_count; i++)
        ef_buf_printf(out, " --%s", ef_cli_flag_name(&command->options[i], flag, sizeof(flag)));
    if (strcmp(command->words, "completions") == 0)
        ef_buf_append_str(out, " bash zsh fish");
    ef_buf_append_str(out, "'\n        case $previous in\n");
    for (size_t i = 0; command->options_shown && i < command->option_count; i++) {
        size_t start = out->len;
        ef_buf_printf(out, "        --%s) words='",
                      ef_cli_flag_name(&command->options[i], flag, sizeof(flag)));
        size_t before = out->len;
        option_values(out, command, &command->options[i]);
        if (out->len == before)
            out->len = start; /* nothing to list */
        else
            ef_buf_append_str(out, "' ;;\n");
    }
    ef_buf_append_str(out, "        esac ;;\n");
}

/* The words that may come first, or after the first of a group. */
static void
first_words(struct ef_buf *out)
{
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++) {
        const char *words = ef_cli_command_at(i)->words;
        int len = (int)strcspn(words, " ");
        bool again = i > 0 && strncmp(ef_cli_command_at(i - 1)->words, words, (size_t)len) == 0;
        if (!again)
            ef_buf_printf(out, "%s%.*s", i > 0 ? " " : "", len, words);
    }
}

void
ef_cli_completions_bash(struct ef_buf *out)
{
    ef_buf_append_str(out, "# Completions of everflame for bash.\n"
                           "_everflame() {\n"
                           "    local current=${COMP_WORDS[COMP_CWORD]} line words= previous\n"
                           "    previous=${COMP_WORDS[COMP_CWORD-1]}\n"
                           "    line=\"${COMP_WORDS[*]:1:COMP_CWORD-1}\"\n"
                           "    case $line in\n");
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++)
        bash_command(out, ef_cli_command_at(i));
    ef_buf_append_str(out, "    'workers versions') words=list ;;\n"
                           "    workers) words='list versions' ;;\n"
                           "    '') words='");
    first_words(out);
    ef_buf_append_str(out, " --help --version' ;;\n"
                           "    esac\n"
                           "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                           "}\n"
                           "complete -o default -F _everflame everflame\n");
}

void
ef_cli_completions_zsh(struct ef_buf *out)
{
    ef_buf_append_str(out, "#compdef everflame\n"
                           "# Completions of everflame for zsh, by way of those for bash.\n"
                           "autoload -U +X bashcompinit && bashcompinit\n");
    ef_cli_completions_bash(out);
}

/* Appends text for a place between single quotes in fish. */
static void
fish_quoted(struct ef_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\')
            ef_buf_put_u8(out, '\\');
        ef_buf_put_u8(out, (uint8_t)*text);
    }
}

static void
fish_command(struct ef_buf *out, const struct ef_cli_command *command)
{
    char flag[64];
    char last[32], before[64] = "__fish_use_subcommand";
    const char *blank = strrchr(command->words, ' ');

    snprintf(last, sizeof(last), "%s", blank != NULL ? blank + 1 : command->words);
    if (blank != NULL)
        snprintf(before, sizeof(before), "__fish_seen_subcommand_from %.*s",
                 (int)strcspn(command->words, " "), command->words);
    ef_buf_printf(out, "complete -c everflame -n '%s' -f -a '%s' -d '", before,
                  blank != NULL ? strchr(command->words, ' ') + 1 : last);
    fish_quoted(out, command->sentence);
    ef_buf_append_str(out, "'\n");
    for (size_t i = 0; command->options_shown && i < command->option_count; i++) {
        const struct ef_option *option = &command->options[i];
        ef_buf_printf(out, "complete -c everflame -n '__fish_seen_subcommand_from %s' -l %s%s -d '",
                      last, ef_cli_flag_name(option, flag, sizeof(flag)),
                      option->type == EF_OPT_BOOL ? "" : " -r");
        fish_quoted(out, option->sentence);
        ef_buf_append_str(out, "' -a '");
        option_values(out, command, option);
        ef_buf_append_str(out, "'\n");
    }
}

void
ef_cli_completions_fish(struct ef_buf *out)
{
    ef_buf_append_str(out, "# Completions of everflame for fish.\n");
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++)
        fish_command(out, ef_cli_command_at(i));
}
