-- Patterns, by which rules say which repositories and tags they are for. A pattern stands for whole
-- names:
--   release-*       a glob: * and ? stand for what has no slash, ** for anything, {a,b} for one of
--   ~v[0-9]+        a regular expression
--   !nightly-*      one of both with ! before it: every name that does not match
--
-- Nobody can hang a review by one. A regular expression has characters, classes, groups, | * + ?
-- and bounds, and nothing else but ^ at its beginning and $ at its end. Of these PostgreSQL makes
-- an automaton, in a time that grows with the length of what is repeated written out, and matches a
-- name in a time that grows with both lengths. Of (^|$)* 30 times it made one for over 15 seconds.
-- A class has an arc for each character that the pattern tells from others, wherever one can get to
-- it: a list of 140 letters beside \w{0,130} 6 times took 6 seconds and 200 MB.

create function _regexp(pattern text)
    returns text
    language sql
    immutable
    parallel safe
    return (
        select case when p.negated then '^(?!(?:' else '^(?:' end || p.body
            || case when p.negated then ')$)' else ')$' end
        from (
            select starts_with(pattern, '!'), case
                when starts_with(w.rest, '~') then substr(w.rest, 2)
                else replace(replace(translate(replace(replace(replace(replace(w.rest,
                        '**', chr(1)), '*', chr(2)), '.', '[.]'), '?', '[^/]'), '{},', '()|'),
                    chr(1), '.*'), chr(2), '[^/]*')
            end
            from (select regexp_replace(pattern, '^!', '')) as w(rest)
        ) as p(negated, body)
    );

comment on function _regexp(text) is 'A pattern as a regular expression.';


create function _refuse_pattern(pattern text, detail text)
    returns void
    language sql
    stable
    return _refuse('22023', format('this is no pattern: %s', left(pattern, 300)), detail,
        'Use a glob like release-*, a regular expression like ~v[0-9]+, or either after a !.');

comment on function _refuse_pattern(text, text) is 'Raises 22023.';


-- x{255} is as long as 255 x, and (x)+ as x(x)*: so + after groups in groups doubles, and doubles.
create function _written_out(body text)
    returns numeric
    language sql
    immutable
    parallel safe
    return (length(body) + (
            select coalesce(sum(b[1]::numeric), 0)
            from regexp_matches(body, '[{,]([0-9]+)(?=[,}])', 'g') as b
        )) * power(2::numeric, (length(body) - length(replace(body, ')+', ''))) / 2);

comment on function _written_out(text) is
    'How long a regular expression is at most when what is repeated is written out.';


-- At 100,000 it takes less than a second. Of single characters and dots there are no more arcs than
-- in a list of words.
create function _arcs(body text)
    returns numeric
    language sql
    immutable
    parallel safe
    return _written_out(body)
        * (select count(*)
            from regexp_matches(body, '[[]|' || repeat(chr(92), 2) || '[A-Za-z]', 'g'))
        * (select count(distinct c[1]) from regexp_matches(body, '.', 'g') as c);

comment on function _arcs(text) is
    'How many arcs the classes of a regular expression may have in its automaton, roughly.';


-- (? begins lookaround, *** an option. A backslash is @ here: it stands before a class, or before
-- what is no letter and no digit. PostgreSQL itself refuses what has no sense.
create function _is_plain(body text)
    returns boolean
    language sql
    immutable
    parallel safe
    return rtrim(ltrim(body, '^'), '$') ~ replace('^([^][@(){}^$]|[()]|[@][dswDSW]|[@][^A-Za-z0-9]'
            '|[[]([^][@]|[@].|[[]:[a-z]+:[]])+[]]|[{][0-9]+(,[0-9]*)?[}])*$',
            '@', repeat(chr(92), 2))
        and body !~ '[(][?]|[)][{]|[*]{3}';

comment on function _is_plain(text) is
    'Whether a regular expression has only what rules may use.';


create function _is_pattern(pattern text)
    returns boolean
    language plpgsql
    immutable
as $$
declare
    body text := regexp_replace(pattern, '^!', '');
begin
    if length(pattern) > 200 then
        perform registry._refuse_pattern(pattern, 'It has more than 200 characters.');
    elsif starts_with(body, '~') then
        if not registry._is_plain(substr(body, 2)) then
            perform registry._refuse_pattern(pattern, 'It has more than characters, classes, '
                'groups, | * + ? and bounds, a bound after a group, or ^ or $ inside.');
        elsif registry._written_out(body) > 1000 then
            perform registry._refuse_pattern(pattern,
                'It has more than 1,000 characters when what it repeats is written out.');
        elsif registry._arcs(body) > 100000 then
            perform registry._refuse_pattern(pattern, 'It is too long for so many classes beside '
                'so many different characters.');
        end if;
        perform '' ~ substr(body, 2);
    elsif body !~ '^([A-Za-z0-9._/*?-]|[{][A-Za-z0-9._/*?,-]+[}])+$' then
        perform registry._refuse_pattern(pattern, 'A glob has no such character, or nests braces.');
    end if;
    return true;
exception
    when invalid_regular_expression then
        perform registry._refuse_pattern(pattern, sqlerrm);
        return false;
end;
$$;

comment on function _is_pattern(text) is 'True; raises 22023 for what is not a pattern.';
