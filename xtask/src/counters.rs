//! Generator of docs/stat.md: every key of `terrace stat --json` with its meaning, from the doc comments of
//! terrace-api.

use std::collections::HashMap;

/// The type of the whole report.
const ROOT: &str = "StatReport";
const HEAD: &str = "\
# The keys of `terrace stat --json`

One JSON object an instance and line. `[]`: of each element. Sizes are in bytes; counters begin at 0 when terraced starts, also when it is
started again after a crash. Keys below `mrc` are there with `--mrc` only. This page is made from the comments of `terrace-api`
(`cargo run -p xtask stat > docs/stat.md`), and the tests hold it equal to them.

| key | meaning |
|---|---|
";

type Structs = HashMap<String, Vec<syn::Field>>;

/// The page, from the sources of terrace-api.
pub(crate) fn page(sources: &[String]) -> String {
    let mut structs = Structs::new();
    for text in sources {
        for item in syn::parse_file(text).expect("terrace-api compiles").items {
            if let syn::Item::Struct(item) = item {
                structs.insert(item.ident.to_string(), item.fields.into_iter().collect());
            }
        }
    }
    let mut page = HEAD.to_owned();
    rows(ROOT, "", &structs, &mut page);
    page
}

fn rows(name: &str, prefix: &str, structs: &Structs, page: &mut String) {
    for field in &structs[name] {
        let (inner, list) = inner_type(&field.ty);
        if is_flattened(field) {
            rows(&inner, prefix, structs, page);
            continue;
        }
        let ident = field.ident.as_ref().expect("fields have names");
        let key = format!("{prefix}{ident}{}", if list { "[]" } else { "" });
        if structs.contains_key(&inner) {
            rows(&inner, &format!("{key}."), structs, page);
        } else {
            *page += &format!("| `{key}` | {} |\n", comment(&field.attrs));
        }
    }
}

/// The type's last path segment, inside an `Option`, `Box` or `Vec`; and whether it is a `Vec`.
fn inner_type(of: &syn::Type) -> (String, bool) {
    let syn::Type::Path(path) = of else { return (String::new(), false) };
    let Some(last) = path.path.segments.last() else { return (String::new(), false) };
    match &last.arguments {
        syn::PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
            Some(syn::GenericArgument::Type(inner)) => {
                let (name, list) = inner_type(inner);
                (name, list || last.ident == "Vec")
            }
            _ => (last.ident.to_string(), false),
        },
        _ => (last.ident.to_string(), false),
    }
}

fn is_flattened(field: &syn::Field) -> bool {
    let mut found = false;
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("serde")) {
        // Skips the values of attributes other than `flatten`.
        let _ = attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("flatten");
            if meta.input.peek(syn::Token![=]) {
                let _: syn::Expr = meta.value()?.parse()?;
            }
            Ok(())
        });
    }
    found
}

fn comment(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|a| match &a.meta {
        syn::Meta::NameValue(syn::MetaNameValue { path, value: syn::Expr::Lit(lit), .. })
            if path.is_ident("doc") =>
        {
            match &lit.lit {
                syn::Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            }
        }
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn keys_of_nested_types_have_their_paths() {
        let source = "struct StatReport { #[serde(flatten)] cache: Stats, #[serde(default, skip_serializing_if = \"f\")] mrc: Option<Mrc> }
            struct Stats { /// Reads | writes.\n /// More.\n reads: u64, rows: Vec<Row> }
            struct Row { /// Pages.\n pages: u64 } struct Mrc { /// Time.\n seconds: f64 }";
        let rows =
            "| `reads` | Reads \\| writes. More. |\n| `rows[].pages` | Pages. |\n| `mrc.seconds` | Time. |\n";
        assert!(page(&[source.to_owned()]).ends_with(&format!("|---|---|\n{rows}")));
    }
}
