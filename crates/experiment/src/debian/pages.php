<?php
// Pages from templates, words that are alike, and a table that is sorted in several ways.

final class Numbers
{
    public function __construct(private int $state) {}

    public function below(int $limit): int
    {
        $this->state = ($this->state * 22695477 + 1) & 0xffffffff;
        return ($this->state >> 12) % $limit;
    }
}

function word(Numbers $numbers): string
{
    $word = '';
    for ($part = 0; $part < 2 + $numbers->below(3); $part++) {
        $word .= 'bcdfghlmnprstvw'[$numbers->below(15)] . 'aeiou'[$numbers->below(5)];
    }
    return $word;
}

function distance(string $one, string $other): int
{
    $before = range(0, strlen($other));
    for ($i = 0; $i < strlen($one); $i++) {
        $row = [$i + 1];
        for ($j = 0; $j < strlen($other); $j++) {
            $row[] = min($before[$j] + ($one[$i] === $other[$j] ? 0 : 1), $row[$j] + 1, $before[$j + 1] + 1);
        }
        $before = $row;
    }
    return $before[strlen($other)];
}

function fill(string $template, array $values): string
{
    $lists = preg_replace_callback(
        '/\{#(\w+)\}(.*?)\{\/\1\}/s',
        fn(array $found) => implode('', array_map(fn($own) => fill($found[2], $own), $values[$found[1]] ?? [])),
        $template,
    );
    return preg_replace_callback('/\{(\w+)\}/', fn(array $found) => htmlspecialchars((string) ($values[$found[1]] ?? '')), $lists);
}

$numbers = new Numbers(11);
$words = [];
for ($number = 0; $number < 260; $number++) {
    $words[] = word($numbers);
}
$closest = [];
foreach (array_slice($words, 0, 16) as $word) {
    $near = array_filter($words, fn($other) => $other !== $word);
    usort($near, fn($one, $other) => strcmp($one, $other));
    $distances = array_map(fn($other) => distance($word, $other), $near);
    $closest[$word] = $near[array_search(min($distances), $distances, true)];
}
ksort($closest);
echo json_encode($closest), "\n";

$template = "<h1>{title}</h1>\n<ul>{#rows}<li class=\"{kind}\">{name}: {count}</li>\n{/rows}</ul>\n";
$length = 0;
for ($page = 0; $page < 260; $page++) {
    $rows = [];
    for ($row = 0; $row < 20; $row++) {
        $rows[] = ['name' => $words[$numbers->below(260)], 'kind' => $row % 2 ? 'odd' : 'even', 'count' => $numbers->below(1000)];
    }
    usort($rows, fn($one, $other) => $other['count'] <=> $one['count'] ?: strcmp($one['name'], $other['name']));
    $html = fill($template, ['title' => "page <$page>", 'rows' => $rows]);
    $length += strlen($html);
    if ($page % 100 === 0) {
        echo strip_tags($html);
    }
}
echo $length, ' ', crc32(serialize($closest)), "\n";
