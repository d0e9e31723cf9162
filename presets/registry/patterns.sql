-- Patterns, by which rules say which repositories and tags they are for. A pattern stands for whole
-- names:
--   release-*       a glob: * and ? stand for what has no slash, ** for anything, {a,b} for one of
--   ~v[0-9]+        a regular expression
--   !nightly-*      one of both with ! before it: every name that does not match
--
-- Nobody can hang a review by one. Without backward references, lookaround and bounds on groups,
-- PostgreSQL matches a name in a time that grows with its length, however the pattern looks, and
-- the pattern itself is not much bigger than what is written.

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


-- A bound after a group is what makes a short pattern long; (? begins lookaround.
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
        if body ~ '[(][?]|[)][{]|[*]{3}' or body ~ ('[' || repeat(chr(92), 2) || '][0-9]') then
            perform registry._refuse_pattern(pattern,
                'It has a backward reference, lookaround, or a bound after a group.');
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
