//! What the derives write.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Expr, Fields, LitInt, LitStr, Path};

use crate::variants::{Named, each_of, named};

pub(crate) fn event(input: &DeriveInput) -> syn::Result<TokenStream> {
    let (mut krate, mut version, mut upcast, mut with_schemas) = (None, None, None, false);
    each_of(&input.attrs, "event", |meta| {
        if meta.path.is_ident("crate") {
            krate = Some(meta.value()?.parse::<LitStr>()?.parse::<Path>()?);
        } else if meta.path.is_ident("version") {
            version = Some(meta.value()?.parse::<LitInt>()?);
        } else if meta.path.is_ident("upcast") {
            upcast = Some(meta.value()?.parse::<Path>()?);
        } else if meta.path.is_ident("schemas") {
            with_schemas = true;
        } else {
            return Err(meta.error("an event takes `version`, `upcast`, `schemas` and `crate`"));
        }
        Ok(())
    })?;
    let number = version.as_ref().map_or(Ok(1), LitInt::base10_parse::<u16>)?;
    if let (Some(upcast), 0..=1) = (&upcast, number) {
        return Err(syn::Error::new_spanned(upcast, "nothing is older than version 1; write `version = 2`"));
    }
    let krate = krate.unwrap_or_else(|| syn::parse_quote!(::towpath));
    let upcast = upcast.map(|upcast| {
        quote! {
            fn upcast(
                name: &str,
                schema_version: u16,
                payload: #krate::Payload,
            ) -> ::core::result::Result<#krate::Payload, #krate::InvalidPayload> {
                #upcast(name, schema_version, payload)
            }
        }
    });
    let variants = named(input, "order.placed")?;
    let body = quote! { const VERSION: u16 = #number; #upcast };
    let schemas = if with_schemas { schemas(input, &variants)? } else { TokenStream::new() };
    let implementation = implementation(input, &variants, &quote!(#krate::Event), &body);
    Ok(quote! { #implementation #schemas })
}

/// The JSON Schema of each payload, by the application's own schemars.
fn schemas(input: &DeriveInput, variants: &[Named<'_>]) -> syn::Result<TokenStream> {
    let DeriveInput { ident, vis, .. } = input;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    let mut listed = Vec::new();
    for Named { variant, constant, .. } in variants {
        let Fields::Unnamed(fields) = &variant.fields else {
            let why = "a payload with a schema is a type of its own; write `Placed(Placed)`";
            return Err(syn::Error::new_spanned(variant, why));
        };
        let payload = &fields.unnamed;
        listed.push(quote!((Self::#constant, ::schemars::schema_for!(#payload))));
    }
    Ok(quote! {
        #[automatically_derived]
        impl #generics #ident #arguments #conditions {
            /// The stored names with the JSON Schemas of their payloads.
            #vis fn schemas() -> ::std::vec::Vec<(&'static str, ::schemars::Schema)> {
                ::std::vec![#(#listed),*]
            }
        }
    })
}

pub(crate) fn command(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut krate: Path = syn::parse_quote!(::towpath);
    each_of(&input.attrs, "command", |meta| {
        if !meta.path.is_ident("crate") {
            return Err(meta.error("the enum takes `crate`; `gives` and `internal` stand on variants"));
        }
        krate = meta.value()?.parse::<LitStr>()?.parse()?;
        Ok(())
    })?;
    let variants = named(input, "order.place")?;
    let (mut pairs, mut internal) = (Vec::new(), Vec::new());
    for Named { variant, constant, .. } in &variants {
        each_of(&variant.attrs, "command", |meta| {
            if meta.path.is_ident("gives") {
                let event: Expr = meta.value()?.parse()?;
                pairs.push(quote!((Self::#constant, #event)));
            } else if meta.path.is_ident("internal") {
                internal.push(quote!(Self::#constant));
            } else {
                return Err(meta.error("a command takes `gives` and `internal`"));
            }
            Ok(())
        })?;
    }
    let body = quote! {
        const PAIRS: &'static [(&'static str, &'static str)] = &[#(#pairs),*];
        const INTERNAL: &'static [&'static str] = &[#(#internal),*];
    };
    Ok(implementation(input, &variants, &quote!(#krate::Command), &body))
}

/// The constants, and the trait with what both traits have.
fn implementation(
    input: &DeriveInput,
    variants: &[Named<'_>],
    path: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let DeriveInput { ident, vis, .. } = input;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    let idents: Vec<_> = variants.iter().map(|named| &named.variant.ident).collect();
    let constants: Vec<_> = variants.iter().map(|named| &named.constant).collect();
    let names: Vec<_> = variants.iter().map(|named| &named.name).collect();
    let docs = names.iter().map(|name| format!("The stored name `{}`.", name.value()));
    quote! {
        #[allow(dead_code, reason = "not every name is needed by its constant")]
        #[automatically_derived]
        impl #generics #ident #arguments #conditions {
            #(#[doc = #docs] #vis const #constants: &'static str = #names;)*
        }
        #[automatically_derived]
        impl #generics #path for #ident #arguments #conditions {
            const NAMES: &'static [&'static str] = &[#(Self::#constants),*];
            #body
            fn name(&self) -> &'static str {
                match *self { #(Self::#idents { .. } => Self::#constants,)* }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn refused(made: syn::Result<TokenStream>) -> Vec<String> {
        made.unwrap_err().into_iter().map(|flaw| flaw.to_string()).collect()
    }

    #[test]
    fn a_variant_without_a_stored_name_is_refused_with_the_attribute_to_write() {
        let flaws = refused(event(&parse_quote! {
            enum OrderEvent {
                Placed { sku: String },
                #[serde(rename = "order.shipped", alias = "order.sent")] Shipped,
                #[serde(default)] Lost,
            }
        }));
        assert_eq!(flaws.len(), 2, "all at once: {flaws:?}");
        assert_eq!(
            flaws[0],
            "`Placed` has no stored name; write #[serde(rename = \"...\")] on it, for example \"order.placed\""
        );
    }

    #[test]
    fn what_could_not_be_read_back_is_refused() {
        let tagged = refused(command(&parse_quote! {
            #[serde(tag = "type")] enum Ask { #[serde(rename = "order.place")] Place }
        }));
        assert!(tagged[0].starts_with("`tag` changes"), "{tagged:?}");
        let skipped = refused(command(&parse_quote! {
            enum Ask { #[serde(rename = "order.place", skip)] Place }
        }));
        assert!(skipped[0].starts_with("a variant with `skip`"), "{skipped:?}");
        let one_way = refused(command(&parse_quote! {
            enum Ask { #[serde(rename(serialize = "order.place"))] Place }
        }));
        assert!(one_way[0].starts_with("a stored name is the same both ways"), "{one_way:?}");
        let twice = refused(event(&parse_quote! {
            enum Happened { #[serde(rename = "a.placed")] A, #[serde(rename = "a.placed")] B }
        }));
        assert_eq!(twice, ["another variant is stored under this name"]);
        let no_enum = refused(event(&parse_quote! { struct Happened; }));
        assert_eq!(no_enum, ["only an enum has variants that can be named"]);
    }

    #[test]
    fn an_attribute_that_means_nothing_is_refused() {
        let misplaced = refused(command(&parse_quote! {
            #[command(internal)] enum Ask { #[serde(rename = "order.place")] Place }
        }));
        assert!(misplaced[0].contains("stand on variants"), "{misplaced:?}");
        let misspelt = refused(command(&parse_quote! {
            enum Ask { #[serde(rename = "order.place")] #[command(give = X::Y)] Place }
        }));
        assert_eq!(misspelt, ["a command takes `gives` and `internal`"]);
        let never_called = refused(event(&parse_quote! {
            #[event(upcast = older)] enum Happened { #[serde(rename = "a.placed")] A }
        }));
        assert_eq!(never_called, ["nothing is older than version 1; write `version = 2`"]);
        let no_type = refused(event(&parse_quote! {
            #[event(schemas)] enum Happened { #[serde(rename = "a.placed")] A { sku: String } }
        }));
        assert_eq!(no_type, ["a payload with a schema is a type of its own; write `Placed(Placed)`"]);
    }
}
