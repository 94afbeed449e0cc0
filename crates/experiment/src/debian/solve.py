"""Evaluates expressions, places queens, and finds ways through a maze."""

import heapq
import re


class Random:
    """The same numbers in every run."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 1103515245 + 12345) % 2147483648
        return (self.state >> 8) % limit


class Parser:
    TOKEN = re.compile(r"\s*(?:(\d+)|(.))")
    LEVELS = [("+", "-"), ("*", "%")]

    def __init__(self, text):
        self.tokens = [number or sign for number, sign in self.TOKEN.findall(text)]
        self.place = 0

    def peek(self):
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self):
        token = self.peek()
        self.place += 1
        return token

    def operation(self, level=0):
        if level == len(self.LEVELS):
            return self.atom()
        left = self.operation(level + 1)
        while self.peek() in self.LEVELS[level]:
            left = (self.take(), left, self.operation(level + 1))
        return left

    def atom(self):
        token = self.take()
        if token == "(":
            inner = self.operation()
            self.take()
            return inner
        return int(token) if token.isdigit() else token


def evaluate(tree, names):
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return names.get(tree, 0)
    sign, left, right = tree[0], evaluate(tree[1], names), evaluate(tree[2], names)
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right % 1000003
    return left % right if right else 0


def expression(random, depth):
    if depth == 0 or random.below(5) == 0:
        return str(random.below(100)) if random.below(2) else "abcxyz"[random.below(6)]
    left, right = expression(random, depth - 1), expression(random, depth - 1)
    return f"({left} {'+-*%'[random.below(4)]} {right})"


def queens(size, row=0, columns=frozenset(), rising=frozenset(), falling=frozenset()):
    if row == size:
        return 1
    found = 0
    for column in range(size):
        if column in columns or row + column in rising or row - column in falling:
            continue
        found += queens(size, row + 1, columns | {column}, rising | {row + column}, falling | {row - column})
    return found


def shortest(maze, start, end):
    best, waiting = {start: 0}, [(0, start)]
    while waiting:
        cost, place = heapq.heappop(waiting)
        if place == end:
            return cost
        if cost > best[place]:
            continue
        row, column = place
        for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if near in maze and cost + maze[near] < best.get(near, 1 << 30):
                best[near] = cost + maze[near]
                heapq.heappush(waiting, (best[near], near))
    return None


def main():
    random = Random(7)
    names = {name: number for number, name in enumerate("abcxyz", 3)}
    results = [evaluate(Parser(expression(random, 6)).operation(), names) for _ in range(140)]
    print("expressions", sum(results), len(set(results)))
    print("queens", queens(6))
    size = 44
    maze = {(row, column): 1 + random.below(9) for row in range(size) for column in range(size) if random.below(5)}
    maze[0, 0] = maze[size - 1, size - 1] = 1
    print("maze", shortest(maze, (0, 0), (size - 1, size - 1)))


main()
