/* A recursive-descent parser for JSON, in which strings hold arithmetic expressions that are parsed and computed too. The
 * text is generated, SIZE records of it.
 */
#include "common.h"

/* A growing text. */
struct text {
    char *bytes;
    size_t length, capacity;
};

static void append(struct text *text, const char *more)
{
    size_t length = strlen(more);
    if (text->length + length + 1 > text->capacity) {
        text->capacity = 2 * (text->capacity + length + 1);
        text->bytes = realloc(text->bytes, text->capacity);
        if (text->bytes == NULL)
            exit(2);
    }
    memcpy(text->bytes + text->length, more, length + 1);
    text->length += length;
}

static void append_number(struct text *text, uint64_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    append(text, digits);
}

static void generate_expression(struct text *text, uint64_t *random, int depth)
{
    static const char *const operators[] = {"+", "-", " * ", " / ", " % "};
    uint64_t choice = next_random(random) >> 40;
    if (depth == 0 || choice % 4 == 0) {
        append_number(text, choice / 4 % 1000 + 1);
        return;
    }
    append(text, choice % 3 == 0 ? "(" : "");
    generate_expression(text, random, depth - 1);
    append(text, operators[choice / 4 % 5]);
    generate_expression(text, random, depth - 1);
    append(text, choice % 3 == 0 ? ")" : "");
}

static void generate_record(struct text *text, uint64_t *random, long number)
{
    append(text, "  {\"number\": ");
    append_number(text, (uint64_t)number);
    append(text, ", \"name\": \"record\\t");
    append_number(text, next_random(random) >> 50);
    append(text, "\",\n   \"flags\": [true, false, null, -");
    append_number(text, next_random(random) >> 52);
    append(text, ".25e-1], \"empty\": {},\n   \"expression\": \"=");
    generate_expression(text, random, 5);
    append(text, "\"}");
}

/* Where the parser stands, and what it has found. */
struct parser {
    const char *at;
    uint64_t hash;
    long objects, arrays, strings, numbers, words, errors;
};

static void note(struct parser *parser, uint64_t value)
{
    parser->hash = (parser->hash ^ value) * 0x100000001b3u;
}

static void skip_space(struct parser *parser)
{
    while (*parser->at == ' ' || *parser->at == '\n' || *parser->at == '\t')
        parser->at++;
}

/* Goes past `wanted` if it comes next. */
static int accept(struct parser *parser, char wanted)
{
    skip_space(parser);
    if (*parser->at != wanted)
        return 0;
    parser->at++;
    return 1;
}

static void expect(struct parser *parser, char wanted)
{
    if (!accept(parser, wanted))
        parser->errors++;
}

static int64_t expression(struct parser *parser);

static int64_t factor(struct parser *parser)
{
    if (accept(parser, '-'))
        return -factor(parser);
    if (accept(parser, '(')) {
        int64_t value = expression(parser);
        expect(parser, ')');
        return value;
    }
    int64_t value = 0;
    while (*parser->at >= '0' && *parser->at <= '9')
        value = value * 10 + (*parser->at++ - '0');
    return value;
}

static int64_t term(struct parser *parser)
{
    int64_t value = factor(parser);
    for (;;) {
        if (accept(parser, '*')) {
            value = (int64_t)((uint64_t)value * (uint64_t)factor(parser)) % 1000003;
        } else if (accept(parser, '/')) {
            int64_t divisor = factor(parser);
            value = divisor == 0 ? 0 : value / divisor;
        } else if (accept(parser, '%')) {
            int64_t divisor = factor(parser);
            value = divisor == 0 ? 0 : value % divisor;
        } else {
            return value;
        }
    }
}

static int64_t expression(struct parser *parser)
{
    int64_t value = term(parser);
    for (;;) {
        if (accept(parser, '+'))
            value += term(parser);
        else if (accept(parser, '-'))
            value -= term(parser);
        else
            return value;
    }
}

static void string(struct parser *parser)
{
    parser->strings++;
    if (*parser->at == '=') {
        parser->at++;
        note(parser, (uint64_t)expression(parser));
    }
    for (; *parser->at != '"' && *parser->at != '\0'; parser->at++) {
        char character = *parser->at;
        if (character == '\\')
            character = *++parser->at == 't' ? '\t' : *parser->at;
        note(parser, (unsigned char)character);
    }
    expect(parser, '"');
}

static void number(struct parser *parser)
{
    int64_t mantissa = 0, exponent = 0, sign = *parser->at == '-' ? -1 : 1, scale = 0;
    parser->numbers++;
    parser->at += *parser->at == '-';
    for (int fraction = 0; (*parser->at >= '0' && *parser->at <= '9') || *parser->at == '.'; parser->at++) {
        if (*parser->at == '.') {
            fraction = 1;
        } else {
            mantissa = mantissa * 10 + (*parser->at - '0');
            scale += fraction;
        }
    }
    if (*parser->at == 'e') {
        int negative = *++parser->at == '-';
        parser->at += negative;
        while (*parser->at >= '0' && *parser->at <= '9')
            exponent = exponent * 10 + (*parser->at++ - '0');
        exponent = negative ? -exponent : exponent;
    }
    note(parser, (uint64_t)(sign * mantissa));
    note(parser, (uint64_t)(exponent - scale));
}

static void word(struct parser *parser)
{
    static const char *const words[] = {"true", "false", "null"};
    parser->words++;
    for (size_t i = 0; i < 3; i++)
        if (strncmp(parser->at, words[i], strlen(words[i])) == 0) {
            parser->at += strlen(words[i]);
            note(parser, i);
            return;
        }
    parser->errors++;
    parser->at += *parser->at != '\0';
}

static void value(struct parser *parser)
{
    skip_space(parser);
    switch (*parser->at) {
    case '{':
        parser->at++;
        parser->objects++;
        if (accept(parser, '}'))
            return;
        do {
            expect(parser, '"');
            string(parser);
            expect(parser, ':');
            value(parser);
        } while (accept(parser, ','));
        expect(parser, '}');
        return;
    case '[':
        parser->at++;
        parser->arrays++;
        if (accept(parser, ']'))
            return;
        do {
            value(parser);
        } while (accept(parser, ','));
        expect(parser, ']');
        return;
    case '"':
        parser->at++;
        string(parser);
        return;
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        number(parser);
        return;
    default:
        word(parser);
    }
}

int main(int argc, char **argv)
{
    long size = parse_size(argc, argv, "records", 120000, 1000000);
    struct text text = {0};
    uint64_t random = 42;
    append(&text, "[\n");
    for (long i = 0; i < size; i++) {
        generate_record(&text, &random, i);
        append(&text, i + 1 < size ? ",\n" : "\n");
    }
    append(&text, "]\n");
    struct parser parser = {.hash = 0xcbf29ce484222325u};
    for (int round = 0; round < 4; round++) {
        parser.at = text.bytes;
        value(&parser);
    }
    skip_space(&parser);
    int good = parser.errors == 0 && *parser.at == '\0' && parser.objects == 8 * size;
    printf("parser: %ld objects, %ld strings, %ld numbers, hash %016llx, %s\n", parser.objects, parser.strings,
           parser.numbers, (unsigned long long)parser.hash, good ? "no errors" : "WRONG");
    return good ? 0 : 1;
}
