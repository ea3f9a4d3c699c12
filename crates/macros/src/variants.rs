//! The variants of an enum with their stored names, as serde's attributes say them.

use std::collections::HashSet;

use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::{Data, DeriveInput, Expr, Ident, LitStr, Token, Variant};

/// A variant that is stored under a name.
pub(crate) struct Named<'i> {
    pub(crate) variant: &'i Variant,
    pub(crate) name: LitStr,
    /// `PLACED` for `Placed`.
    pub(crate) constant: Ident,
}

/// All variants, or what is wrong with any of them: all of it at once.
pub(crate) fn named<'i>(input: &'i DeriveInput, example: &str) -> syn::Result<Vec<Named<'i>>> {
    let Data::Enum(data) = &input.data else {
        return Err(syn::Error::new_spanned(&input.ident, "only an enum has variants that can be named"));
    };
    // What is stored is a variant's name and its content; serde must not mix the two.
    refuse(&input.attrs, &["tag", "content", "untagged", "from", "try_from", "into"], |attribute| {
        format!(
            "`{attribute}` changes how serde writes the enum; its variants are stored by name and content"
        )
    })?;
    let mut flaws: Option<syn::Error> = None;
    let mut note = |flaw: syn::Error| match &mut flaws {
        Some(flaws) => flaws.combine(flaw),
        None => flaws = Some(flaw),
    };
    let mut taken = HashSet::new();
    let mut named = Vec::new();
    for variant in &data.variants {
        match name_of(variant, example) {
            Err(flaw) => note(flaw),
            Ok(name) if !taken.insert(name.value()) => {
                note(syn::Error::new(name.span(), "another variant is stored under this name"));
            }
            Ok(name) => named.push(Named { variant, name, constant: constant(&variant.ident) }),
        }
    }
    match flaws {
        Some(flaws) => Err(flaws),
        None => Ok(named),
    }
}

fn name_of(variant: &Variant, example: &str) -> syn::Result<LitStr> {
    let lost = ["skip", "skip_serializing", "skip_deserializing", "other", "untagged"];
    refuse(&variant.attrs, &lost, |attribute| {
        format!("a variant with `{attribute}` cannot be stored and read back under its name")
    })?;
    let mut name = None;
    each_of(&variant.attrs, "serde", |meta| {
        if !meta.path.is_ident("rename") {
            return skip_value(&meta);
        }
        if !meta.input.peek(Token![=]) {
            return Err(meta.error("a stored name is the same both ways; write rename = \"...\""));
        }
        name = Some(meta.value()?.parse()?);
        Ok(())
    })?;
    name.ok_or_else(|| {
        let message = format!(
            "`{}` has no stored name; write #[serde(rename = \"...\")] on it, for example \"{example}\"",
            variant.ident
        );
        syn::Error::new_spanned(&variant.ident, message)
    })
}

/// Hands out what stands in the attributes of this name, one by one.
pub(crate) fn each_of(
    attributes: &[syn::Attribute],
    name: &str,
    mut look: impl FnMut(ParseNestedMeta<'_>) -> syn::Result<()>,
) -> syn::Result<()> {
    let mut attributes = attributes.iter().filter(|attribute| attribute.path().is_ident(name));
    attributes.try_for_each(|attribute| attribute.parse_nested_meta(&mut look))
}

fn refuse(attributes: &[syn::Attribute], words: &[&str], why: impl Fn(&str) -> String) -> syn::Result<()> {
    each_of(attributes, "serde", |meta| {
        if let Some(word) = words.iter().find(|word| meta.path.is_ident(word)) {
            return Err(meta.error(why(word)));
        }
        skip_value(&meta)
    })
}

/// Reads over `= value` or `(...)` of an attribute that is serde's own business.
fn skip_value(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        let content;
        syn::parenthesized!(content in meta.input);
        content.parse::<proc_macro2::TokenStream>()?;
    }
    Ok(())
}

fn constant(variant: &Ident) -> Ident {
    let letters: Vec<char> = variant.unraw().to_string().chars().collect();
    let mut constant = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let next_is_small = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let begins = at > 0 && letter.is_uppercase() && (!letters[at - 1].is_uppercase() || next_is_small);
        if begins && letters[at - 1] != '_' {
            constant.push('_');
        }
        constant.extend(letter.to_uppercase());
    }
    Ident::new(&constant, variant.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_spelled_as_constants_are() {
        for (variant, expected) in [
            ("Placed", "PLACED"),
            ("SpecApplied", "SPEC_APPLIED"),
            ("HTTPSent", "HTTP_SENT"),
            ("Area51Left", "AREA51_LEFT"),
        ] {
            assert_eq!(constant(&quote::format_ident!("{variant}")).to_string(), expected);
        }
    }
}
