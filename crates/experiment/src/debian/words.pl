# Counts words, turns the text around by rules, and sorts what comes out.
use strict;
use warnings;

my (%count, %followers, @lines);
open(my $text, '<', $ARGV[0]) or die "no text: $!";
while (my $line = <$text>) {
    chomp $line;
    push @lines, $line;
    my $before = '';
    for my $word (split /[^a-z]+/, lc $line) {
        next if length $word < 2;
        $count{$word}++;
        $followers{$before}{$word}++ if $before ne '';
        $before = $word;
    }
}
close $text;

# Inflections, as a learner's grammar might have them.
my @rules = (
    [qr/([^aeiou])y\b/, sub { "$1ies" }],
    [qr/([aeiou])([^aeiou])e\b/, sub { "$1$2ing" }],
    [qr/\b(\w)(\w+)(\w)\b/, sub { "$1" . reverse($2) . "$3" }],
);
my $changed = 0;
for my $line (@lines) {
    for my $rule (@rules) {
        my ($pattern, $replacement) = @$rule;
        $changed += $line =~ s/$pattern/$replacement->()/ge;
    }
}

my @common = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
for my $word (@common[0 .. 39]) {
    my $next = $followers{$word} || {};
    my @best = sort { $next->{$b} <=> $next->{$a} || $a cmp $b } keys %$next;
    printf "%-12s %6d  %s\n", $word, $count{$word}, join(' ', grep { defined } @best[0 .. 4]);
}
my %by_shape;
push @{ $by_shape{ join '', sort split //, $_ } }, $_ for @common;
my @anagrams = sort map { join '=', @$_ } grep { @$_ > 1 } values %by_shape;
print "$changed changed, ", scalar(@anagrams), " anagrams: @anagrams\n";
